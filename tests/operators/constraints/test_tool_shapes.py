"""Forced tool calls: whatever their grammar lets a model draw, the reader of the format finds as one call."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from operators.constraints.tool_shapes import closed, tool_shape
from operators.prompts.tool_formats import FORMATS, ToolFormat, parse_calls
from pipeline.api.errors import ConfigError
from tests.sets import often

MARKS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|channel|>", "<|message|>", "<|constrain|>"),
    *("<|end|>", "<|start|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<start_function_call>", "<end_function_call>"),
    "<escape>",
]
ENDS = [b"\n</parameter>", b"<escape>", b'<|"|>']
TOKENS = [b"", *(bytes([byte]) for byte in range(256)), *(b"" for _ in MARKS), *ENDS]
DRAWN = frozenset('abcdefghijklmnopqrstuvwxyz _é"\\\n{}<>|:,/0192-[]()')
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "deep": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}}},
            "required": ["on"],
        },
    },
    "required": ["city", "deep"],
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]


class Vocabulary:
    """Single bytes, control tokens without any, and what ends a text."""

    bos_token_id = None
    eos_token_id = 0
    special_token_ids = (0,)
    tokens = TOKENS

    def __call__(self, text: bytes | str) -> list[int]:
        return [byte + 1 for byte in (text.encode() if isinstance(text, str) else text)]


TOKENIZER = LLTokenizer(TokenizerWrapper(Vocabulary()), eos_token=[0])


def control(text: str) -> int | None:
    return 257 + MARKS.index(text) if text in MARKS else None


def drawn(form: ToolFormat, seed: int, *, controls: bool) -> str | None:
    """A text that a drunken model draws under the grammar; None if it goes on for too long."""
    shape = tool_shape(form, TOOLS, control if controls else lambda text: None)
    matcher, chance, tokens = LLMatcher(TOKENIZER, shape.grammar, log_level=0), random.Random(seed), []
    for _ in range(600):
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(bits, count=len(TOKENS), bitorder="little")).tolist()
        fair = [t for t in allowed if t == 0 or t > 256 or chr(t - 1) in DRAWN] or allowed
        ends = [t for t in fair if t == 0 or t > 256 or chr(t - 1) in '"}</|']
        token = chance.choice(ends if ends and chance.random() < 0.4 else fair)
        if token == 0:
            break
        matcher.consume_token(token)
        tokens.append(token)
        if matcher.is_stopped():
            break
    else:
        return None
    return b"".join(TOKENS[t] or MARKS[t - 257].encode() for t in tokens).decode("utf-8", "replace")


@pytest.mark.parametrize("controls", often([True, False], True))
@pytest.mark.parametrize("form", FORMATS.values(), ids=list(FORMATS))
def test_what_is_forced_is_one_call_of_a_tool_and_nothing_else(form, controls):
    texts = [text for seed in range(40) if (text := drawn(form, seed, controls=controls)) is not None]
    assert len(texts) > 10
    for text in texts:
        found = parse_calls(form, re.sub(r"(?s)\A.*<\|end\|>", "", text) if form.before else text)
        assert not found.content, text
        (call,) = found.calls
        schema = next(tool["function"].get("parameters", {}) for tool in TOOLS if tool["function"]["name"] == call.name)
        if form.arguments != "tags":  # whose values have the types of their schema only later
            jsonschema.validate(call.arguments, {**schema, "additionalProperties": False})
    assert len({text for text in texts if "get_weather" in text}) > 3


@pytest.mark.parametrize("form", FORMATS.values(), ids=list(FORMATS))
def test_two_tools_have_two_grammars(form):
    one, other = (tool_shape(form, [tool], control) for tool in TOOLS)
    assert one.digest != other.digest


def test_only_a_control_token_is_written_as_one():
    shape = tool_shape(FORMATS["hermes"], TOOLS, lambda text: 300 if text == "<tool_call>" else None)
    assert "<[300]>" in shape.grammar
    assert json.dumps("</tool_call>")[1:-1] in shape.grammar


@pytest.mark.parametrize("form", FORMATS.values(), ids=list(FORMATS))
def test_a_schema_that_cannot_be_forced_is_an_error_that_names_its_tool(form):
    broken = {"type": "object", "properties": {"a": {"type": "colour"}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "paint", "parameters": broken}}
    with pytest.raises(ConfigError, match="paint"):
        tool_shape(form, [tool], control)


def test_a_call_has_no_arguments_that_nobody_described():
    assert closed({"type": "object", "properties": {"properties": {"type": "object"}}}) == {
        "type": "object",
        "properties": {"properties": {"type": "object", "additionalProperties": False}},
        "additionalProperties": False,
    }
    open_ = {"type": "object", "additionalProperties": True}
    assert closed(open_) == open_
    assert closed({"type": "array", "items": {"$ref": "#/$defs/a"}}) == {
        "type": "array",
        "items": {"$ref": "#/$defs/a"},
    }
