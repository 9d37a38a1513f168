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

from operators.constraints.grammars import Form
from operators.constraints.tool_shapes import tool_shape
from operators.generation.tool_calls import answer_of
from operators.prompts.tool_formats import FORMATS, ToolFormat
from pipeline.api.errors import ConfigError
from tests.operators.constraints.tool_cases import CASES
from tests.sets import often

MARKS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|channel|>", "<|message|>", "<|constrain|>"),
    *("<|end|>", "<|start|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<start_function_call>", "<end_function_call>"),
    "<escape>",
]
ENDS = [b"\n</parameter>", b"<escape>", b'<|"|>']
TOKENS = [b"", *(bytes([byte]) for byte in range(256)), *(b"" for _ in MARKS), *ENDS]
DRAWN = frozenset('abcdefghijklmnopqrstuvwxyz _é"\\\n{}<>|:,/0192-[]()')
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CASES["object"][0]}}
TOOLS: list[dict[str, Any]] = [WEATHER, {"type": "function", "function": {"name": "now"}}]
OFTEN = ("optional text", "enum of some of each", "all of objects", "itself", "pattern within", "anything", "open")


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


def drawn(form: ToolFormat, shape: Form, seed: int) -> str | None:
    """A text that a drunken model draws under the grammar; None if it goes on for too long."""
    matcher, chance, tokens = LLMatcher(TOKENIZER, shape.grammar, log_level=0), random.Random(seed), []
    for _ in range(500):
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(bits, count=len(TOKENS), bitorder="little")).tolist()
        fair = [t for t in allowed if t == 0 or t > 256 or chr(t - 1) in DRAWN] or allowed
        ends = [t for t in fair if t == 0 or t > 256 or chr(t - 1) in '"}]</|\n']
        token = chance.choice(ends if ends and chance.random() < 0.5 else fair)
        if token == 0:
            break
        matcher.consume_token(token)
        tokens.append(token)
        if matcher.is_stopped():
            break
    else:
        return None
    text = b"".join(TOKENS[t] or MARKS[t - 257].encode() for t in tokens).decode("utf-8", "replace")
    return re.sub(r"(?s)\A.*<\|end\|>", "", text) if form.before else text


@pytest.mark.parametrize("case", often(CASES, *OFTEN))
@pytest.mark.parametrize("form", FORMATS.values(), ids=list(FORMATS))
def test_what_the_grammar_writes_the_reader_reads_as_one_call_that_keeps_its_schema(form, case):
    """Or the schema is refused, with its tool."""
    schema, refusing = CASES[case]
    tools = [{"type": "function", "function": {"name": "paint", "parameters": schema}}]
    if form.name in refusing:
        with pytest.raises(ConfigError, match="the tool paint"):
            tool_shape(form, tools, control)
        return
    texts: set[str] = set()
    for controls in (True, False):
        shape = tool_shape(form, tools, control if controls else lambda text: None)
        texts |= {text for seed in range(8) if (text := drawn(form, shape, seed)) is not None}
    assert texts
    for text in texts:
        answer = answer_of(form, text, json.dumps(tools), "required")
        if answer.error is not None and re.search(r"[eE]\+?[0-9]{3}", text):
            continue  # a number beyond a double, which is told
        assert (answer.error, answer.content) == (None, ""), text
        assert answer.calls is not None
        (call,) = answer.calls
        arguments = json.loads(call["arguments"])
        jsonschema.validate(arguments, schema)
        if not {"additionalProperties", "patternProperties"} & {*re.findall(r"\w+", json.dumps(schema))}:
            assert undescribed(arguments, schema, schema) == [], text


def undescribed(value: Any, schema: Any, root: Any) -> list[str]:
    """The names in a value that its schema nowhere has: of one that names them all."""
    known = re.findall(r'"((?:[^"\\]|\\.)*)":', json.dumps(root, ensure_ascii=False))
    if isinstance(value, list):
        return [name for part in value for name in undescribed(part, schema, root)]
    if not isinstance(value, dict):
        return []
    return [name for name in value if json.dumps(name, ensure_ascii=False)[1:-1] not in known]


@pytest.mark.parametrize("form", FORMATS.values(), ids=list(FORMATS))
def test_two_tools_have_two_grammars(form):
    one, other = (tool_shape(form, [tool], control) for tool in TOOLS)
    assert one.digest != other.digest


def test_only_a_control_token_is_written_as_one():
    shape = tool_shape(FORMATS["hermes"], TOOLS, lambda text: 300 if text == "<tool_call>" else None)
    assert "<[300]>" in shape.grammar
    assert json.dumps("</tool_call>")[1:-1] in shape.grammar


@pytest.mark.parametrize("text", ["12", " -1e2", "True", "None", "[a", "{}"])
def test_a_text_between_tags_never_looks_like_another_type_that_the_argument_takes(text):
    call = f"<tool_call>\n<function=f>\n<parameter=k>\n{text}\n</parameter>\n</function>\n</tool_call>"
    limits = {"minimum": 100, "minItems": 9, "minProperties": 9}  # no JSON of these texts fits
    other = {"type": ["integer", "array", "object", "boolean", "null"], **limits}
    for schema, fits in (({"type": "string"}, True), ({"anyOf": [{"type": "string"}, other]}, False)):
        parameters = {"type": "object", "properties": {"k": schema}, "required": ["k"]}
        shape = tool_shape(FORMATS["tags"], [{"function": {"name": "f", "parameters": parameters}}], lambda name: None)
        matcher, tokens = LLMatcher(TOKENIZER, shape.grammar, log_level=0), [byte + 1 for byte in call.encode()]
        assert (matcher.validate_tokens(tokens) == len(tokens)) == fits
