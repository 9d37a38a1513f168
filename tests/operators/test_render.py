"""Render: templates over columns, chat templates, and the rows that cannot be rendered."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from operators.render import Render
from operators.settings import DataSettings
from pipeline.api.errors import ConfigError, InputError, NodeFailed, SchemaError
from tests.operators.fakes import chat_model
from tests.operators.flow import Flow, Rows, chain

PROMPT = pa.schema([("prompt", pa.string())])
TWO = pa.schema([("question", pa.string()), ("context", pa.string())])
MESSAGES = pa.schema([("chat", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])))])
TURNS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CHAT = DataSettings(messages_column="chat")


def render(tmp_path: Path, rows: list[dict[str, Any]], schema: pa.Schema, op: Render) -> tuple[list[Any], list[str]]:
    """The texts, and the reasons of the rejects."""
    flow = Flow(tmp_path, chain(Rows(rows, schema), render=op))
    texts = [row["prompt_text"] for row in flow.run()]
    return texts, [reason for _, _, reason in flow.tally.by_reason]


def user(content: str | None) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_template_over_columns(tmp_path: Path) -> None:
    op = Render(
        chat_model(), DataSettings(), template="Q: {{ question }}\n{% if context %}\nC: {{ context }}\n{% endif %}"
    )
    rows: list[dict[str, Any]] = [{"question": "why?", "context": "sky"}, {"question": "who?", "context": None}]
    assert render(tmp_path, rows, TWO, op) == (["Q: why?\nC: sky\n", "Q: who?\n"], [])


def test_template_file(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ row }}-{{ prompt }}")
    op = Render(chat_model(), DataSettings(), template_file=str(tmp_path / "t.jinja"))
    assert render(tmp_path, [{"prompt": "a"}], PROMPT, op) == (["0-a"], [])


def test_chat_template_over_a_prompt_with_system(tmp_path: Path) -> None:
    op = Render(chat_model(TURNS, system="be brief"), DataSettings())
    assert render(tmp_path, [{"prompt": "hi"}], PROMPT, op) == (["[system]be brief[user]hi[assistant]"], [])


def test_chat_template_over_messages_keeps_their_system(tmp_path: Path) -> None:
    own = [{"role": "system", "content": "mine"}, user("hi")]
    op = Render(chat_model(TURNS, system="be brief"), CHAT)
    texts, _ = render(tmp_path, [{"chat": own}, {"chat": [user("ho")]}], MESSAGES, op)
    assert texts == ["[system]mine[user]hi[assistant]", "[system]be brief[user]ho[assistant]"]


@pytest.mark.parametrize("before", ["", "\n", " \t\r\n "])
@pytest.mark.parametrize("bos", ["<s>", ""])
@pytest.mark.parametrize("add_bos", [True, False])
def test_bos_is_never_there_twice(tmp_path: Path, add_bos: bool, bos: str, before: str) -> None:
    template = f"{{{{ {before!r} }}}}{{{{ bos_token }}}}{TURNS}"
    op = Render(chat_model(template, add_bos=add_bos, bos_token=bos), DataSettings())
    kept = "" if add_bos and bos else before + bos
    assert render(tmp_path, [{"prompt": "hi"}], PROMPT, op) == ([kept + "[user]hi[assistant]"], [])


@pytest.mark.parametrize("template", [None, TURNS])
def test_a_prompt_that_is_null_or_empty_is_a_reject_that_says_so(tmp_path: Path, template: str | None) -> None:
    rows: list[dict[str, Any]] = [{"prompt": None}, {"prompt": ""}, {"prompt": " "}]
    texts, reasons = render(tmp_path, rows, PROMPT, Render(chat_model(template), DataSettings()))
    assert len(texts) == 1
    assert reasons == [f"column '…' is {what}; give it a text or drop the row" for what in ("null", "empty")]


@pytest.mark.parametrize(
    ("system", "data", "says"),
    [
        ("Be brief.", DataSettings(), r"model.system='Be brief.' has no effect where template is set; write it into"),
        (None, DataSettings(prompt_column="promt"), r"data.prompt_column=promt is no column; .*=prompt\?"),
        (None, CHAT, r"data.messages_column=chat is no column; .* leave data.messages_column out"),
    ],
)
def test_what_a_template_would_ignore_is_refused(system: str | None, data: DataSettings, says: str) -> None:
    with pytest.raises((ConfigError, SchemaError), match=says):
        Render(chat_model(TURNS, system), data, template="{{ prompt }}").plan(PROMPT)


@pytest.mark.parametrize("chat_template", [None, TURNS])
def test_a_template_that_bypasses_a_chat_template_is_named_once(tmp_path: Path, caplog, chat_template: str) -> None:
    rows = [{"prompt": str(i)} for i in range(40)]
    op = Render(chat_model(chat_template), DataSettings(), template="{{ prompt }}")
    assert len(render(tmp_path, rows, PROMPT, op)[0]) == 40
    said = [r.getMessage() for r in caplog.records if "nodes.render.op.template bypasses it" in r.getMessage()]
    assert len(said) == (chat_template is not None)


def test_half_a_character_costs_its_row(tmp_path: Path) -> None:
    halves = ['[{"role": "user", "content": "\\ud800"}]', '[{"role": "\\ud800", "content": "x"}]', '{"\\ud800": 1}']
    good = '[{"role": "user", "content": "\\ud83d\\ude00"}]'
    schema = pa.schema([("chat", pa.string())])
    strict = "{% if messages[0].role not in ('user', 'system') %}{{ raise_exception(messages[0].role) }}{% endif %}"
    rows = [{"chat": text} for text in (good, *halves)]
    texts, reasons = render(tmp_path, rows, schema, Render(chat_model(strict + TURNS), CHAT))
    assert texts == ["[user]\U0001f600[assistant]"]
    for reason, begins in zip(
        reasons, ("template: the text has half", "template: \\udN", "column '…' holds"), strict=True
    ):
        assert reason.startswith(begins)


@pytest.mark.parametrize(
    ("settings", "data", "arguments"),
    [
        (chat_model(), CHAT, {}),
        (chat_model(system="s"), DataSettings(), {}),
        (chat_model(), DataSettings(), {"messages": [user("{{ prompt }}"), user("x")]}),
        (chat_model(), DataSettings(), {"writes": "user"}),
    ],
)
def test_what_needs_a_chat_template_says_so(tmp_path, settings, data, arguments):
    schema = pa.schema([*PROMPT, *MESSAGES])
    flow = Flow(tmp_path, chain(Rows([], schema), render=Render(settings, data, **arguments)))
    with pytest.raises(NodeFailed, match="needs a chat template") as failure:
        flow.run()
    assert failure.value.exit_code == 2


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (None, "is null"),
        ([], "has no messages"),
        ([None], "has no role"),
        ([user("a"), {"role": "user", "content": None}], "has no content"),
        ([{"role": "tool", "content": "x"}], "no tools here"),
    ],
)
def test_conversations_that_cannot_be_rendered_are_rejects(tmp_path: Path, messages: Any, reason: str) -> None:
    strict = "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}" + TURNS
    rows = [{"chat": [user("fine")]}, {"chat": messages}]
    texts, reasons = render(tmp_path, rows, MESSAGES, Render(chat_model(strict), CHAT))
    assert texts == ["[user]fine[assistant]"]
    assert len(reasons) == 1
    assert reason in reasons[0]


def test_unknown_column_is_named_before_anything_runs() -> None:
    op = Render(
        chat_model(), DataSettings(), template="{{ promt }}{% for i in range(2) %}{{ i }}{% endfor %}{{ bos_token }}"
    )
    with pytest.raises(SchemaError, match=r"template uses 'promt'; the columns are prompt; did you mean prompt\?"):
        op.plan(PROMPT)


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.string()), pa.list_(pa.struct([("text", pa.string())]))])
def test_wrong_types_are_schema_errors(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="messages are list<struct<role"):
        Render(chat_model(), CHAT).plan(pa.schema([("chat", kind)]))
    with pytest.raises(SchemaError, match=r"no column 'prompt'; .*data.prompt_column="):
        Render(chat_model(), DataSettings()).plan(pa.schema([("question", pa.string())]))
    with pytest.raises(SchemaError, match="has type int64, and a prompt is a string; make a text of it"):
        Render(chat_model(), DataSettings()).plan(pa.schema([("prompt", pa.int64())]))


def test_errors_in_templates_name_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"template, line 2: .*endif"):
        Render(chat_model(), DataSettings(), template="a\n{% endif %}").plan(PROMPT)
    with pytest.raises(ConfigError, match="keep one"):
        Render(chat_model(), DataSettings(), template="a", template_file="b")
    with pytest.raises(InputError, match="template_file=nowhere cannot be read"):
        Render(chat_model(), DataSettings(), template_file="nowhere").plan(PROMPT)


DATED = (
    "{% if strftime_now is defined %}{% set d = strftime_now('%Y') %}{% else %}{% set d = 'none' %}{% endif %}{{ d }}"
    "{{ messages[0].content }}"
)


def test_the_date_is_never_the_clocks(tmp_path: Path) -> None:
    assert render(tmp_path, [{"prompt": "x"}], PROMPT, Render(chat_model(DATED), DataSettings())) == (["nonex"], [])
    fixed = Render(replace(chat_model(DATED), date="1999-12-31"), DataSettings())
    assert render(tmp_path, [{"prompt": "x"}], PROMPT, fixed) == (["1999x"], [])
    with pytest.raises(NodeFailed, match="fix a date"):
        render(tmp_path, [{"prompt": "x"}], PROMPT, Render(chat_model("{{ strftime_now('%Y') }}"), DataSettings()))


def test_a_template_file_is_fingerprinted_by_its_content(tmp_path: Path) -> None:
    def fingerprint(name: str, text: str) -> dict[str, str]:
        (tmp_path / name).write_text(text)
        return Render(chat_model(), DataSettings(), template_file=str(tmp_path / name)).fingerprint()

    assert fingerprint("a", "x") == fingerprint("b", "x") != fingerprint("a", "y")


@pytest.mark.parametrize(
    ("columns", "name", "says"),
    [
        (["nr", "question"], "Question", "; did you mean data.prompt_column=question?"),
        (["nr;question"], "question", "; 'nr;question' looks like several columns: data.separator= says"),
        (["nr", "question"], "prompt", ""),
    ],
)
def test_a_missing_prompt_column_is_answered_with_what_may_be_meant(columns: list[str], name: str, says: str) -> None:
    schema = pa.schema([(column, pa.string()) for column in columns])
    with pytest.raises(SchemaError) as refused:
        Render(chat_model(), DataSettings(prompt_column=name)).plan(schema)
    assert str(refused.value).partition("data.prompt_template=")[2].startswith(says)


@pytest.mark.parametrize("template", [None, "{{ question }}"])
def test_an_input_without_columns_is_said_to_be_empty(template: str | None) -> None:
    with pytest.raises(SchemaError, match=r"the input is empty \(the columns are row\)"):
        Render(chat_model(), DataSettings(), template=template).plan(pa.schema([("row", pa.int64())]))


def test_a_prompt_that_is_no_text_is_answered_with_a_template_that_works() -> None:
    schema = pa.schema([("nr", pa.int64())])
    with pytest.raises(SchemaError) as refused:
        Render(chat_model(), DataSettings(prompt_column="nr")).plan(schema)
    written = re.search(r"data.prompt_template=\"(.*)\"", str(refused.value))
    assert written is not None
    Render(chat_model(), DataSettings(prompt_template=written[1])).plan(schema)


ASKED: list[dict[str, Any]] = [{"question": "why?", "context": "sky"}, {"question": "", "context": None}]
TWICE = [
    {"role": "system", "content": "About {{ context or 'nothing' }}."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "{{ question }}"},
]
