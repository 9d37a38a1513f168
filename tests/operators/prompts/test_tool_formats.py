"""Tool calls as models write them: every format read, cut at every character, and told by its chat template."""

from __future__ import annotations

import json

import pytest

from operators.prompts.tool_formats import FORMATS, format_in, parse_calls
from operators.prompts.tool_readers import BrokenCall, ToolCall
from operators.settings.model import TOOL_FORMATS

CITY = {"city": 'Zürich, "old" {town}', "days": 2}
JSON = '{"city": "Zürich, \\"old\\" {town}", "days": 2}'
WEATHER = ToolCall("get_weather", CITY)
SUM = ToolCall("math.add", {"numbers": [1, -2.5e3, None, True], "how": {"exact": False, "note": ""}})
NOW = ToolCall("now", {})
SUM_JSON = '{"numbers": [1, -2.5e3, null, true], "how": {"exact": false, "note": ""}}'

WRITTEN: list[tuple[str, str, str, list[ToolCall]]] = [
    ("hermes", f'<tool_call>\n{{"name": "get_weather", "arguments": {JSON}}}\n</tool_call>', "", [WEATHER]),
    (
        "hermes",
        f'I ask.\n<tool_call>{{"arguments": {SUM_JSON}, "name": "math.add"}}</tool_call>\n'
        f'<tool_call>\n{{"name": "get_weather", "arguments": {JSON}}}\n</tool_call>\n',
        "I ask.\n\n\n",
        [SUM, WEATHER],
    ),
    (
        "tags",
        "Now:\n<tool_call>\n<function=get_weather>\n<parameter=city>\nUlm\n<old>\n</parameter>\n<parameter=days>\n2\n"
        "</parameter>\n</function>\n</tool_call>",
        "Now:\n",
        [ToolCall("get_weather", {"city": "Ulm\n<old>", "days": "2"})],
    ),
    ("tags", "<tool_call><function=now></function></tool_call>", "", [NOW]),
    (
        "tags",
        "<tool_call><function=f><parameter=a>\nRome\n<parameter=b>\n</parameter>\n<parameter=c>\n3\n</function></tool_call>",
        "",
        [ToolCall("f", {"a": "Rome", "b": "", "c": "3"})],
    ),
    (
        "tags",
        '<tool_call><function=f><parameter=a>["</parameter>", "<parameter=b>"]</parameter></function></tool_call>',
        "",
        [ToolCall("f", {"a": '["</parameter>", "<parameter=b>"]'})],
    ),
    ("llama3", f'{{"name": "get_weather", "parameters": {JSON}}}', "", [WEATHER]),
    ("llama3", f'<|python_tag|>{{"type": "function", "name": "math.add", "parameters": {SUM_JSON}}}', "", [SUM]),
    (
        "llama3",
        f'\n{{"name": "get_weather", "parameters": {JSON}}}; {{"name": "math.add", "arguments": {SUM_JSON}}}',
        "",
        [WEATHER, SUM],
    ),
    (
        "llama3",
        f'{{"name": "get_weather", "parameters": {JSON}}}\n{{"name": "math.add", "parameters": {SUM_JSON}}}\n'
        '<|python_tag|>{"name": "now"}',
        "",
        [WEATHER, SUM, NOW],
    ),
    ("llama3", '{"type": "function", "name": "now"}', "", [NOW]),
    (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {JSON}}}, {{"arguments": {SUM_JSON}, "name": "math.add",'
        ' "id": "D681PevKs"}]',
        "",
        [WEATHER, SUM],
    ),
    ("mistral_args", f"Wait.[TOOL_CALLS]get_weather[ARGS]{JSON}", "Wait.", [WEATHER]),
    (
        "mistral_args",
        f"[TOOL_CALLS]get_weather[CALL_ID]D681PevKs[ARGS]{JSON}[TOOL_CALLS]math.add[ARGS] {SUM_JSON}",
        "",
        [WEATHER, SUM],
    ),
    (
        "harmony",
        f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{JSON}<|call|>",
        "",
        [WEATHER],
    ),
    ("harmony", f" to=functions.get_weather<|channel|>commentary json<|message|>{JSON}", "", [WEATHER]),
    (
        "harmony",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.math.add"
        f"<|message|>{SUM_JSON}<|call|>",
        "I look.",
        [SUM],
    ),
    ("gemma", '<|tool_call>call:get_weather{city:<|"|>Zürich, "old" {town}<|"|>,days:2}<tool_call|>', "", [WEATHER]),
    (
        "gemma",
        'Well.<|tool_call>call:math.add{numbers:[1,-2.5e3,null,true], how:{exact:false,note:<|"|><|"|>}}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|><|tool_call>call:now<tool_call|>",
        "Well.",
        [SUM, NOW, NOW],
    ),
    (
        "function_gemma",
        '<start_function_call>call:get_weather{city:<escape>Zürich, "old" {town}<escape>,days:2}<end_function_call>',
        "",
        [WEATHER],
    ),
]
"""Format, text, what stands beside its calls, and these."""


@pytest.mark.parametrize(("name", "text", "content", "calls"), WRITTEN)
def test_every_format_is_read(name, text, content, calls):
    assert parse_calls(FORMATS[name], text) == (content if content.strip() else "", calls)


@pytest.mark.parametrize(("name", "text", "content", "calls"), WRITTEN)
@pytest.mark.parametrize("fresh", [True, False])
def test_cut_at_every_character_no_call_is_found_that_is_not_there(name, text, content, calls, fresh):
    """A text that ends anywhere is broken, no call yet, or has the first of its calls, whole."""
    for at in range(len(text)):
        part = text[:at] if fresh else text[at:]
        try:
            beside, found = parse_calls(FORMATS[name], part)
        except BrokenCall:
            continue
        assert found == (calls[: len(found)] if fresh else calls[len(calls) - len(found) :])
        if not found:
            assert beside == part


NO_ARGUMENTS = ["null", '""', '" "', "{}", '"{}"', '"null"']
JSON_CALLS = {
    "hermes": '<tool_call>{{"name": "f", "arguments": {}}}</tool_call>',
    "llama3": '{{"name": "f", "parameters": {}}}',
    "mistral": '[TOOL_CALLS][{{"name": "f", "arguments": {}}}]',
    "mistral_args": "[TOOL_CALLS]f[ARGS]{}",
    "harmony": "<|channel|>commentary to=functions.f<|message|>{}<|call|>",
}


@pytest.mark.parametrize("name", JSON_CALLS)
def test_arguments_are_an_object_or_its_text_or_none(name):
    """OpenAI's own shape has them as text; many models leave out what is empty."""
    shape, form = JSON_CALLS[name], FORMATS[name]
    for written in NO_ARGUMENTS:
        assert parse_calls(form, shape.format(written))[1] == [ToolCall("f", {})], written
    big = {"n": 12345678901234567890, "s": "é"}
    for written in (json.dumps(big), json.dumps(json.dumps(big))):
        assert parse_calls(form, shape.format(written))[1] == [ToolCall("f", big)]
    for written in ("0", "false", "[]", '"x"', '"[]"', '"{} {}"', '"{"', "[null]"):
        with pytest.raises(BrokenCall, match="arguments of a call"):
            parse_calls(form, shape.format(written))
    bare = shape.replace('"parameters": {}', '"type": "function"').replace(', "arguments": {}', "").replace("{}", "")
    if name != "mistral_args":  # whose text would end where arguments begin
        assert parse_calls(form, bare.format())[1] == [ToolCall("f", {})]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "text",
    ["", "Hello", "{}", '{"answer": 4}', '{"name": "Ann", "age": 3}', "[1, 2]", "<think>", "call:f{}", "f[ARGS]{}"],
)
def test_text_that_is_no_call_stays_text(name, text):
    assert parse_calls(FORMATS[name], text) == (text, [])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}', "ends within a call"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}} and so on', "'and so on' comes where"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": tru}}</tool_call>', "no JSON"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "NaN is no number"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "no object with a name"),
        ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>", "no JSON"),
        ("tags", "<tool_call>f()</tool_call>", "where a call has '<function='"),
        ("tags", "<tool_call><function=f><parameter=a\nRome</parameter></function></tool_call>", "is no name in a tag"),
        ("tags", "<tool_call><function=f\n<parameter=a>", "is no name in a tag"),
        ("tags", "<tool_call><function=f><parameter=a>Rome</tool_call>", "ends within a call"),
        ("llama3", '<|python_tag|>print("hello")', "no JSON"),
        ("llama3", '{"name": "get_wea', "ends within a call"),
        ("mistral", "[TOOL_CALLS]", "has no name"),
        ("mistral_args", '[TOOL_CALLS]f{"a": 1}', "where a call has '[ARGS]'"),
        ("harmony", "<|channel|>commentary to=functions.f", "has no <|message|>"),
        ("gemma", "<|tool_call>call:f{a:b}<tool_call|>", "'b}<tool_call|>' is no value"),
        ("gemma", "<|tool_call>call:f{a:01}<tool_call|>", "where a call has ','"),
        ("gemma", "<|tool_call>call:f{a:" + "9" * 5000 + "}<tool_call|>", "no JSON"),
        ("gemma", "<|tool_call>call:f" + "{a:" * 100_000, "nested too deeply"),
        ("function_gemma", "<start_function_call>call:f{a 1}<end_function_call>", "where a call has ':'"),
    ],
)
def test_a_broken_call_is_told(name, text, said):
    with pytest.raises(BrokenCall) as raised:
        parse_calls(FORMATS[name], text)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (None, None),
        ("{{ messages }}", None),
        ('<tool_call>{"name": ..., "arguments": ...}</tool_call>', "hermes"),
        ('<tool_call>{\\"name\\": ..., \\"arguments\\": ...}</tool_call>', "hermes"),
        ("<tool_call><function=f><parameter=a></tool_call> arguments", "tags"),
        ("<tool_call>f<arg_key>arguments</arg_key></tool_call>", None),
        ("<tool_calls>arguments <tool_call>", None),
        ('<|python_tag|> {"name": function name, "parameters": dictionary of them}', "llama3"),
        ('<function=f>{"parameters": dictionary}</function>', None),
        ("[TOOL_CALLS][...]", "mistral"),
        ("[TOOL_CALLS]f[ARGS]", "mistral_args"),
        ("<|channel|>commentary to=functions.", "harmony"),
        ("<|tool_call>call:", "gemma"),
        ("<start_function_call>call:", "function_gemma"),
    ],
)
def test_the_format_is_read_off_the_chat_template(template, name):
    found = format_in(template)
    assert (found and found.name) == name


def test_the_setting_knows_every_format():
    assert tuple(FORMATS) == TOOL_FORMATS
