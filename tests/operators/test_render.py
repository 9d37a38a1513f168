"""Render: templates over columns, chat templates, and the rows that cannot be rendered."""

from __future__ import annotations

import json
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
        (["nr;question"], "question", "; 'nr;question' looks like several columns: CSV has commas"),
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


def test_templates_of_messages_lie_inside_the_chat_template(tmp_path: Path) -> None:
    op = Render(chat_model(TURNS, system="not used"), DataSettings(), messages=TWICE)
    text = "[system]About sky.[user]2 + 2?[assistant]4[user]why?[assistant]"
    assert render(tmp_path, ASKED, TWO, op) == ([text], ["message N (user) gives an empty text"])


@pytest.mark.parametrize("system", [None, "be brief"])
@pytest.mark.parametrize("template", [None, TURNS])
def test_a_prompt_template_makes_the_users_message(tmp_path: Path, template: str | None, system: str | None) -> None:
    data = DataSettings(prompt_template="{{ context }}: {{ question }}")
    if template is None and system is not None:
        return  # refused; see test_what_needs_a_chat_template_says_so
    texts, _ = render(tmp_path, ASKED[:1], TWO, Render(chat_model(template, system), data))
    turns = f"{'[system]be brief' if system else ''}[user]sky: why?[assistant]"
    assert texts == [turns if template else "sky: why?"]


@pytest.mark.parametrize(("messages", "before"), [([], ""), (TWICE[1:3], "[user]2 + 2?[assistant]4")])
def test_where_the_user_writes_the_prompt_ends_where_his_message_begins(tmp_path, messages, before):
    op = Render(chat_model(TURNS, "be kind"), DataSettings(), messages=messages, writes="user")
    assert render(tmp_path, [{"prompt": "x"}], PROMPT, op) == ([f"[system]be kind{before}[user]"], [])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"messages": [{"role": "user"}]}, "a message is {role: user, content"),
        ({"messages": [{"role": "human", "content": "x"}]}, "the role 'human' is unknown; it is one of system, user"),
        ({"messages": [{"role": "user", "content": "{{ x"}]}, "the user message, line 1"),
        ({"messages": [], "template": "x"}, "both template and messages are set; keep one"),
        ({"writes": "system"}, "writes='system' cannot work"),
    ],
)
def test_messages_that_cannot_work_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Render(chat_model(TURNS), DataSettings(), **arguments)


def test_a_prompt_template_beside_another_source_of_prompts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.messages_column is set, too; keep one"):
        DataSettings(prompt_template="x", messages_column="chat")
    with pytest.raises(ConfigError, match=r"data.prompt_template has no effect where template is set"):
        Render(chat_model(TURNS), DataSettings(prompt_template="x"), template="y").plan(PROMPT)


PART = "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }};{% endif %}{% endfor %}"
TAKES_PARTS = {
    "a loop": PART,
    "an index": "{{ m.content[0]['text'] }};{{ (m.content[1] or {'text': ''}).text }};",
    "one that raises for a text": "{{ m.content[0].text + ';' }}{% for c in m.content[1:] %}{{ c.text }};{% endfor %}",
    "a filter": "{{ m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join(';') }};",
    "a text refused": "{% if m.content is string %}{{ raise_exception('parts!') }}{% endif %}" + PART,
}


def of_each(printed: str) -> str:
    """A chat template that prints each message so."""
    return "{% for m in messages %}[{{ m.role }}]" + printed + "{% endfor %}"


@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize("name", TAKES_PARTS)
def test_a_template_that_takes_parts_is_given_parts(tmp_path: Path, name: str, from_file: bool) -> None:
    model = chat_model(of_each(TAKES_PARTS[name]), system="S")
    if from_file:
        (tmp_path / "t.jinja").write_text(of_each(TAKES_PARTS[name]))
        model.chat_template, model.options["chat_template"] = str(tmp_path / "t.jinja"), None
    contents: list[Any] = ["a", [{"type": "input_text", "text": "b"}, "c"]]
    rows = [{"chat": json.dumps([user(content)])} for content in contents]
    texts, reasons = render(tmp_path, rows, pa.schema([("chat", pa.string())]), Render(model, CHAT))
    whole = [text.replace(";;", ";") for text in texts]
    assert (whole, reasons) == (["[system]S;[user]a;", "[system]S;[user]b;c;"], [])


CHANGES_TEXT = ("{{ m.content | trim | upper }}", "{{ m.content | lower }}", "{{ m.content | tojson }}", "{{ m }}")
LOSES_TEXT = (
    *("hello", "{{ m.role }}", "{{ m.text }}", "{% for c in m.content %}{{ c.image }}{% endfor %}"),
    "{% if m.role == 'assistant' %}{{ m.content }}{% endif %}",
)


@pytest.mark.parametrize("printed", [*CHANGES_TEXT, *LOSES_TEXT])
@pytest.mark.parametrize("from_file", [False, True])
def test_a_template_that_prints_no_user_message_is_refused(tmp_path: Path, printed: str, from_file: bool) -> None:
    model = chat_model(of_each(printed))
    if from_file:
        (tmp_path / "t.jinja").write_text(of_each(printed))
        model.chat_template = str(tmp_path / "t.jinja")
    if printed in CHANGES_TEXT:
        texts, _ = render(tmp_path, [{"prompt": " word "}], PROMPT, Render(model, DataSettings()))
        assert "word" in texts[0].lower()
        return
    named = "model.chat_template .*t.jinja" if from_file else "the model's chat template"
    with pytest.raises(NodeFailed, match=named + " does not print what the user writes.*model.chat_template=") as error:
        render(tmp_path, [{"prompt": "word"}], PROMPT, Render(model, DataSettings()))
    assert error.value.exit_code == 2


CALLED = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
KINDS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "system message": ("m.role == 'system'", [{"role": "system", "content": "s"}, user("x")]),
    "developer message": ("m.role == 'developer'", [{"role": "developer", "content": "s"}, user("x")]),
    "user message but the last": (
        "m.role == 'user' and not loop.last",
        [user("a"), {"role": "assistant", "content": ""}, user("x")],
    ),
    "message of the assistant": (
        "m.role == 'assistant'",
        [user("a"), {"role": "assistant", "content": "b"}, user("x")],
    ),
    "tool call": ("m.tool_calls", [user("a"), CALLED]),
    "result of a tool": ("m.role == 'tool'", [user("a"), {"role": "tool", "content": "r"}]),
}
WHOLE = "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}"


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_template_drops_is_said_once_where_rows_have_it(tmp_path: Path, caplog, kind: str) -> None:
    condition, messages = KINDS[kind]
    drops = of_each(f"{{% if {condition} %}}{{% else %}}{WHOLE}{{% endif %}}")
    rows = [{"chat": json.dumps(chat)} for chat in [[user("x")], messages, messages]]

    def said(template: str, rows: list[dict[str, Any]]) -> list[str]:
        caplog.clear()
        op = Render(chat_model(template), CHAT)
        assert len(render(tmp_path, rows, pa.schema([("chat", pa.string())]), op)[0]) == len(rows)
        return [r.getMessage() for r in caplog.records if "chat template prints no" in r.getMessage()]

    assert said(of_each(WHOLE), rows) == said(drops, rows[:1]) == []
    (dropped,) = said(drops, rows)
    assert dropped.startswith(f"the chat template prints no {kind}: what the rows have of it is lost.")


def test_a_system_prompt_that_changes_nothing_is_said_to(tmp_path: Path, caplog) -> None:
    op = Render(
        chat_model(of_each("{% if m.role != 'system' %}{{ m.content }}{% endif %}"), "be brief"), DataSettings()
    )
    render(tmp_path, [{"prompt": str(i)} for i in range(40)], PROMPT, op)
    (said,) = [r.getMessage() for r in caplog.records if "prints no" in r.getMessage()]
    assert said.startswith("the chat template prints no system message: model.system changes nothing.")
