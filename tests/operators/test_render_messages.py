"""Render: messages out of templates, and what a chat template makes of them or drops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from operators.render import Render
from operators.settings import DataSettings
from pipeline.api.errors import ConfigError, NodeFailed
from tests.operators.fakes import chat_model
from tests.operators.test_render import ASKED, CHAT, PROMPT, TURNS, TWICE, TWO, render, user


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
