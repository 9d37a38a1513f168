"""Say: a conversation made turn by turn is the one that is given at once, and no key of it is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from operators.render import Render
from operators.say import Say
from operators.settings import DataSettings
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.config.build import build_graph
from pipeline.settings import JobSettings, NodeSettings
from tests.operators.fakes import chat_model
from tests.operators.flow import Flow, Rows, chain

CALLS = pa.list_(pa.struct([("name", pa.string()), ("arguments", pa.string())]))
SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.int64()),
        ("first", pa.string()),
        ("first_reasoning", pa.string()),
        ("first_tool_calls", CALLS),
        ("completion", pa.string()),
    ]
)
ROWS = [
    {
        "a": i,
        "b": i % 3,
        "first": "" if i % 2 else f"{i} it is",
        "first_reasoning": None if i % 3 else "A sum.",
        "first_tool_calls": [{"name": "add", "arguments": f'{{"a": {i}, "b": {i % 3}}}'}] * (i % 2) or None,
        "completion": f"So {i}.",
    }
    for i in range(23)
]
HERMES = """
{%- for tool in tools or [] %}<tools>{{ tool | tojson }}</tools>{% endfor %}
{%- for m in messages %}[{{ m.role }}]
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}<tool_call>{{ call.id }} {{ call.function | tojson }}</tool_call>{% endfor %}
{%- if m.tool_call_id %}<{{ m.tool_call_id }} {{ m.name }}>{% endif %}
{%- endfor %}[assistant]"""


def calculate(name: str, arguments: dict[str, Any], row: dict[str, Any]) -> Any:
    """A tool that adds and divides."""
    if name == "divide":
        return arguments["a"] / arguments["b"]
    return {"sum": arguments["a"] + arguments["b"], "of_row": row["row"]}


def at_once(row: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """The conversation of a row of ROWS, written out."""
    answer: dict[str, Any] = {"role": "assistant"}
    answer |= {"content": row["first"]} if row["first"] else {}
    answer |= {"reasoning_content": row["first_reasoning"]} if row["first_reasoning"] else {}
    made = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"{row['a']} + {row['b']}?"},
        answer,
    ]
    if row["first_tool_calls"]:
        function = row["first_tool_calls"][0]
        answer["tool_calls"] = [{"id": "call00000", "type": "function", "function": function}]
        content = json.dumps({"sum": row["a"] + row["b"], "of_row": number})
        made.append({"role": "tool", "tool_call_id": "call00000", "name": "add", "content": content})
    return [*made, {"role": "assistant", "content": row["completion"]}, {"role": "user", "content": "Sure?"}]


def turns() -> dict[str, Say]:
    return {
        "begin": Say("system", "Be brief."),
        "ask": Say("user", "{{ a }} + {{ b }}?"),
        "answer": Say("assistant", answer="first"),
        "tool": Say("tool", function=calculate),
        "end": Say("assistant"),
        "again": Say("user", "Sure?"),
    }


def test_turn_by_turn_is_at_once(tmp_path: Path) -> None:
    """As JSON, and as the text that a template makes of it."""
    render = {"render": Render(chat_model(HERMES), DataSettings(messages_column="messages"))}
    rows = Flow(tmp_path / "turns", chain(Rows(ROWS, SCHEMA), **turns(), **render)).run()
    whole = [json.dumps(at_once(row, i)) for i, row in enumerate(ROWS)]
    assert [json.loads(row["messages"]) for row in rows] == [json.loads(text) for text in whole]
    given = Rows([{"messages": text} for text in whole], pa.schema([("messages", pa.string())]))
    texts = [row["prompt_text"] for row in Flow(tmp_path / "whole", chain(given, **render)).run()]
    assert [row["prompt_text"] for row in rows] == texts
    assert "<tool_call>call00000" in texts[1]
    assert "<think>A sum.</think>" in texts[0]


def test_a_step_names_the_column_instead_of_the_jobs_settings(tmp_path: Path) -> None:
    text = json.dumps(at_once(ROWS[1], 1))
    given = Rows([{"messages": text, "prompt": "x"}], pa.schema([("messages", pa.string()), ("prompt", pa.string())]))
    made = [
        Flow(tmp_path / str(i), chain(given, render=op)).run()[0]["prompt_text"]
        for i, op in enumerate(
            (
                Render(chat_model(HERMES), DataSettings(messages_column="messages")),
                Render(chat_model(HERMES), DataSettings(), messages="messages"),
            )
        )
    ]
    assert made[0] == made[1]
    with pytest.raises(SchemaError, match=r"^messages=chat is no column; the input has row, messages, prompt$"):
        Render(chat_model(HERMES), DataSettings(), messages="chat").plan(given.schema)


def said(tmp_path: Path, op: Say, values: list[Any], kind: pa.DataType | None = None) -> tuple[list[Any], list[str]]:
    """The conversations that `op` makes of these values of the column, and the reasons of the rejects."""
    rows = Rows([{"messages": value} for value in values], pa.schema([("messages", kind or pa.string())]))
    flow = Flow(tmp_path, chain(rows, say=op))
    made = [json.loads(row["messages"]) for row in flow.run()]
    rejects = pa.array([reason for _, _, reason in flow.tally.by_reason], pa.string()).to_pylist()
    assert len(made) + flow.tally.errors == len(values)
    return made, rejects


def test_messages_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    function = {"name": "f", "arguments": '{"x": 1}'}
    there = [
        {"role": "user", "content": [{"type": "text", "text": "é"}], "name": "eve"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "name": "f", "content": "2"},
        {"role": "assistant", "content": "two", "reasoning_content": "r", "thinking": "t", "weight": 0.5},
    ]
    made, _ = said(tmp_path, Say("user", "more"), [json.dumps(there)])
    assert made == [[*there, {"role": "user", "content": "more"}]]


def test_images_of_messages_stay_where_they_are(tmp_path: Path) -> None:
    part = {"type": "image_url", "image_url": {"url": "a.png"}}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}]
    op = Say(role="user", content="Sure?")
    rows = [{"messages": json.dumps(messages)}]
    (row,) = Flow(tmp_path, chain(Rows(rows, pa.schema([("messages", pa.string())])), say=op)).run()
    assert json.loads(row["messages"]) == [*messages, {"role": "user", "content": "Sure?"}]


def test_structs_lose_the_keys_that_other_rows_have(tmp_path: Path) -> None:
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("name", pa.string())]))
    values = [[{"role": "user", "content": "a", "name": "eve"}], [{"role": "user", "content": "b"}], None, []]
    made, _ = said(tmp_path, Say("system", "s"), values, kind)
    last = {"role": "system", "content": "s"}
    assert made == [[*(value or []), last] for value in values]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("no", "column '…' is text that is not JSON"),
        ('{"role": "user"}', "column '…' holds an object; messages are a list"),
        ('[{"role": "user"}]', "message N of column '…' has no content"),
        ('["x"]', "message N of column '…' is a text"),
        ('[{"role": "user", "content": "\\ud800"}]', "the conversation has half a character"),
    ],
)
def test_what_is_no_conversation_is_a_reject_with_the_reason(tmp_path: Path, value: str, says: str) -> None:
    made, rejects = said(tmp_path, Say("user", "x"), [value, "[]"])
    assert made == [[{"role": "user", "content": "x"}]]
    assert len(rejects) == 1
    assert rejects[0].startswith(says)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{{ messages.nothing.at_all }}", "content: "),
        ("{{ 1 + messages }}", "content: TypeError"),
        ("{% if not messages %}x{% endif %}", "content gives an empty text"),
    ],
)
def test_a_template_that_cannot_be_rendered_is_a_reject(tmp_path: Path, content: str, says: str) -> None:
    _, rejects = said(tmp_path, Say("user", content), ["[]"])
    assert [reason.startswith(says) for reason in rejects] == [True]


def test_the_columns_beside_an_answer_go_by_its_name(tmp_path: Path) -> None:
    """Of `completion`, of NAME_completion, and of a step NAME."""
    names = ("completion", "reasoning", "x", "x_completion", "x_reasoning")
    row = {name: name for name in names}
    ops = {name: Say("assistant", answer=name) for name in ("completion", "x", "x_completion")}
    schema = pa.schema([(name, pa.string()) for name in names])
    (made,) = Flow(tmp_path, chain(Rows([row], schema), **ops)).run()
    assert [(m["content"], m["reasoning_content"]) for m in json.loads(made["messages"])] == [
        ("completion", "reasoning"),
        ("x", "x_reasoning"),
        ("x_completion", "x_reasoning"),
    ]


def test_an_answer_that_is_null_adds_nothing_unless_it_calls(tmp_path: Path) -> None:
    rows = [{"x": None, "x_tool_calls": calls} for calls in (None, [], [{"name": "f", "arguments": "{}"}])]
    schema = pa.schema([("x", pa.string()), ("x_tool_calls", CALLS)])
    flow = Flow(tmp_path, chain(Rows(rows, schema), say=Say("assistant", answer="x")))
    assert [len(json.loads(row["messages"])) for row in flow.run()] == [0, 0, 1]


def test_the_column_is_replaced_in_its_place_and_another_may_be_named() -> None:
    schema = pa.schema([("row", pa.int64()), ("chat", pa.string()), ("x", pa.string())])
    assert Say("user", "{{ x }}", column="chat").plan(schema).names == ["row", "chat", "x"]
    assert Say("user", "{{ x }}").plan(schema).names == ["row", "chat", "x", "messages"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"role": "tools"}, "role=.tools. cannot work: it is one of system, user, assistant, tool"),
        ({"role": "user"}, "role user needs content"),
        ({"role": "tool"}, "role tool needs function"),
        ({"role": "tool", "function": calculate, "content": "x"}, "content says nothing where role is tool"),
        ({"role": "user", "content": "x", "answer": "y"}, "answer says nothing where role is user"),
        ({"role": "user", "content": "x", "column": "lineage"}, "'lineage' says which row it is"),
        ({"role": "user", "content": "{{ x"}, "content, line 1"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Say(**arguments)


@pytest.mark.parametrize(
    ("op", "says"),
    [
        (Say("user", "{{ topc }}"), r"content uses 'topc'; .* did you mean topic"),
        (Say("assistant"), "needs a column 'completion'"),
        (Say("assistant", answer="topic"), "column 'topic_tool_calls' has type string; tool calls are list<struct"),
        (Say("user", "x", column="n"), "column 'n' has type int64; messages are list<struct<role"),
    ],
)
def test_columns_that_cannot_work_are_refused(op: Say, says: str) -> None:
    kinds = {"topic": pa.string(), "topic_tool_calls": pa.string(), "n": pa.int64()}
    with pytest.raises(SchemaError, match=says):
        op.plan(pa.schema([("row", pa.int64()), *kinds.items()]))


def test_a_job_names_the_function_by_its_module() -> None:
    nodes = {
        "numbers": NodeSettings({"_target_": "tests.pipeline.job_ops.Numbers", "rows": 5}),
        "say": NodeSettings(
            {"_target_": "operators.say.Say", "role": "tool", "function": f"{__name__}.calculate"}, "numbers"
        ),
        "write": NodeSettings({"_target_": "tests.pipeline.job_ops.Parquet"}, "say"),
    }
    assert build_graph(JobSettings(nodes=nodes)).nodes["say"].code == ("operators.say.Say", f"{__name__}.calculate")
