"""Template arguments and tools, of a job and of a row, and turns that are left open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from operators.render import Render
from operators.settings import DataSettings, ModelSettings
from pipeline.api.errors import ConfigError, InputError, NodeFailed, SchemaError
from tests.operators.fakes import chat_model
from tests.operators.flow import Flow, Rows, chain
from tests.operators.test_render import PROMPT, TURNS, render

SEES = (
    "{{ messages[0].content }}:{{ effort }}|{{ enable_thinking }}|"
    "{{ (tools or []) | map(attribute='function.name') | join(',') }}"
)
CHAT = DataSettings(messages_column="chat")
TEXT = pa.schema([("chat", pa.string())])


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def model(template: str | None = SEES, **kwargs: Any) -> ModelSettings:
    settings = chat_model(template)
    settings.template_kwargs = kwargs or None
    return settings


STRUCT = pa.struct([("effort", pa.string()), ("enable_thinking", pa.bool_())])


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (STRUCT, None, "x:low|False|"),
        (STRUCT, {"effort": "high", "enable_thinking": None}, "x:high|False|"),
        (pa.map_(pa.string(), pa.string()), [("effort", "high")], "x:high|False|"),
        (pa.string(), '{"effort": null, "enable_thinking": true}', "x:None|True|"),
        (pa.string(), "[1]", "column '…' holds a list; template arguments are an object"),
        (pa.string(), "{", "column '…' is text that is not JSON"),
        (pa.string(), '{"tools": []}', "column '…' has the key '…', which Render gives"),
    ],
)
def test_arguments_of_a_row_come_before_those_of_the_job(tmp_path: Path, kind: Any, value: Any, text: str) -> None:
    data = DataSettings(template_kwargs_column="kw")
    op = Render(model(effort="low", enable_thinking=False), data)
    rows = [{"prompt": "x", "kw": value}, {"prompt": "x", "kw": None}]
    texts, reasons = render(tmp_path, rows, pa.schema([*PROMPT, ("kw", kind)]), op)
    if reasons:
        assert texts == ["x:low|False|"]
        assert reasons[0].startswith(text)
    else:
        assert texts == [text, "x:low|False|"]


TOOLS = pa.list_(
    pa.struct([("type", pa.string()), ("function", pa.struct([("name", pa.string()), ("strict", pa.bool_())]))])
)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.string(), json.dumps([tool("a"), tool("b")]), "x:||a,b"),
        (TOOLS, [{"type": "function", "function": {"name": "c", "strict": None}}], "x:||c"),
        (TOOLS, [], "x:||"),
        (pa.string(), '{"name": "a"}', "column '…' holds an object; tools are a list"),
        (pa.string(), '[{"name": "a"}]', "tool N of column '…' has no function with a name; a tool is {type"),
    ],
)
def test_tools_of_a_row(tmp_path: Path, kind: Any, value: Any, text: str) -> None:
    rows = [{"prompt": "x", "given": value}, {"prompt": "x", "given": None}]
    schema = pa.schema([*PROMPT, ("given", kind)])
    texts, reasons = render(tmp_path, rows, schema, Render(model(), DataSettings(tools_column="given")))
    if reasons:
        assert texts == ["x:||"]
        assert reasons[0].startswith(text)
    else:
        assert texts == [text, "x:||"]


def test_null_keys_of_structs_reach_no_template(tmp_path: Path) -> None:
    value = [{"type": "function", "function": {"name": "c", "strict": None}}]
    op = Render(chat_model("{{ messages[0].content }}{{ tools | tojson }}"), DataSettings(tools_column="given"))
    texts, _ = render(tmp_path, [{"prompt": "x", "given": value}], pa.schema([*PROMPT, ("given", TOOLS)]), op)
    assert texts == ['x[{"type": "function", "function": {"name": "c"}}]']


def test_tools_of_the_job_are_a_list_or_a_file_and_a_file_counts_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([tool("a")]))
    data = [DataSettings(tools=[tool("a")]), DataSettings(tools=str(path))]
    for given in data:
        assert render(tmp_path, [{"prompt": "x"}], PROMPT, Render(model(), given)) == (["x:||a"], [])
    before = Render(model(), data[1]).fingerprint()
    path.write_text(json.dumps([tool("b")]))
    assert Render(model(), data[1]).fingerprint() != before


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([1], "tool 0 of data.tools has no function with a name; a tool is {type"),
        ("no.json", "data.tools=no.json cannot be read"),
        (__file__, "is not JSON"),
    ],
)
def test_what_is_no_tools_is_refused_before_anything_runs(given: Any, says: str) -> None:
    with pytest.raises((ConfigError, InputError), match=says):
        Render(model(), DataSettings(tools=given)).plan(PROMPT)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (DataSettings(tools_column="promt"), r"data.tools_column=promt is no column; did you mean data.tools_column="),
        (DataSettings(template_kwargs_column="nr"), "'nr' has type int64, and data.template_kwargs_column is a struct"),
        (DataSettings(tools_column="nr"), "'nr' has type int64, and data.tools_column is a list of structs"),
    ],
)
def test_columns_that_cannot_hold_them_are_refused(data: DataSettings, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        Render(model(), data).plan(pa.schema([*PROMPT, ("nr", pa.int64())]))


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.template_kwargs has 'messages', which Render gives"):
        ModelSettings(template_kwargs={"messages": []})
    with pytest.raises(ConfigError, match=r"has 'tools', which Render gives to the template; write data.tools"):
        ModelSettings(template_kwargs={"tools": []})
    with pytest.raises(ConfigError, match=r"model.template_kwargs='x' cannot work"):
        ModelSettings(template_kwargs="x")
    with pytest.raises(ConfigError, match=r"data.tools is set, too; keep one"):
        DataSettings(tools=[tool("a")], tools_column="b")
    with pytest.raises(ConfigError, match=r"model.template_kwargs has no effect where template is set"):
        Render(model(a=1), DataSettings(), template="{{ prompt }}").plan(PROMPT)
    with pytest.raises(ConfigError, match=r"continue_final_message=true and writes=user"):
        Render(model(), DataSettings(continue_final_message=True), writes="user")


@pytest.mark.parametrize(
    ("settings", "data"),
    [
        (model(None, a=1), DataSettings()),
        (model(None), DataSettings(tools=[tool("a")])),
        (model(None), DataSettings(tools_column="prompt")),
        (model(None), DataSettings(continue_final_message=True)),
    ],
)
def test_a_model_without_a_chat_template_takes_none_of_them(tmp_path, settings, data):
    flow = Flow(tmp_path, chain(Rows([], PROMPT), render=Render(settings, data)))
    with pytest.raises(NodeFailed, match=r"needs a chat template and the model has none; name a file") as failure:
        flow.run()
    assert failure.value.exit_code == 2


def test_what_a_template_does_not_read_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    op = Render(model(TURNS, thinking=False), DataSettings(template_kwargs_column="kw", tools=[tool("a")]))
    rows = [{"prompt": "x", "kw": '{"messages_": 1}' if i > 2 else None} for i in range(40)]
    assert len(render(tmp_path, rows, pa.schema([*PROMPT, ("kw", pa.string())]), op)[0]) == 40
    said = [r.getMessage() for r in caplog.records if "does not read" in r.getMessage()]
    ends = ", which changes nothing then; it reads add_generation_prompt, messages"
    assert said == [f"the chat template does not read {what}{ends}" for what in ("thinking, tools", "messages_")]


CALLS = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.reasoning_content }}{{ m.thinking }}{{ m.tool_call_id }}"
    "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments is mapping }}{{ c.function | tojson }}"
    "{% endfor %};{% endfor %}"
)


def test_messages_with_tool_calls_and_reasoning(tmp_path: Path) -> None:
    def call(arguments: Any) -> dict[str, Any]:
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
        }

    chat = [
        {"role": "assistant", "content": "x", "reasoning": "r"},
        call('{"a": 1}'),
        call({"a": 1}),
        call('{"a": '),
        {"role": "tool", "tool_call_id": "7", "content": "y"},
    ]
    texts, reasons = render(tmp_path, [{"chat": json.dumps(chat)}], TEXT, Render(chat_model(CALLS), CHAT))
    parsed = 'assistant:fTrue{"name": "f", "arguments": {"a": 1}};'
    unparsed = 'assistant:fFalse{"name": "f", "arguments": "{\\"a\\": "};'
    assert (texts, reasons) == ([f"assistant:xrr;{parsed}{parsed}{unparsed}tool:y7;"], [])


@pytest.mark.parametrize("quote", ["'", '"'])
@pytest.mark.parametrize("content", [{}, {"content": None}])
def test_tool_calls_without_content_have_the_content_that_the_template_can_use(tmp_path, content, quote):
    chat = [{"role": "assistant", **content, "tool_calls": [{"function": {"name": "f", "arguments": {"a": "é"}}}]}]
    looks = "{%- if messages[0][QcontentQ] is none %}{{ messages[0].tool_calls[0].function.name }}"
    looks += "{% else %}{{ messages[0].content }}{% endif %}"
    appends = "{{ 'a' + messages[0].content }}{{ '' + messages[0].tool_calls[0].function.arguments }}"
    for template, text in ((looks.replace("Q", quote), "f"), (appends, 'a{"a": "é"}')):
        rows = [{"chat": json.dumps(chat)}]
        assert render(tmp_path, rows, TEXT, Render(chat_model(template), CHAT)) == ([text], [])


STRIPS = TURNS.replace("m.content", "m.content | trim")
ENDS = TURNS.replace("{% endfor %}", "<end>{% endfor %}", 1)


@pytest.mark.parametrize(
    ("template", "content", "text"),
    [
        (ENDS, "It is ", "[user]x<end>[assistant]It is "),
        (STRIPS, "It is ", "[user]x[assistant]It is"),
        (STRIPS, "It is", "[user]x[assistant]It is"),
        (ENDS, "", "[user]x<end>[assistant]"),
        ("{{ messages[0].content }}", "It", None),
    ],
)
def test_the_assistants_last_message_is_left_open(tmp_path, template, content, text):
    chat = [{"role": "user", "content": "x"}]
    rows = [{"chat": json.dumps([*chat, {"role": "assistant", "content": content}])}, {"chat": json.dumps(chat)}]
    op = Render(chat_model(template), DataSettings(messages_column="chat", continue_final_message=True))
    texts, reasons = render(tmp_path, rows, TEXT, op)
    assert len(texts) == 2 - (text is None)
    if text is None:
        assert reasons == ["the chat template does not print the last message as it is, so it cannot be continued"]
    else:
        assert texts[0] == text
        assert texts[1].endswith("[assistant]")  # of the user's there is nothing to continue: a prompt as ever
