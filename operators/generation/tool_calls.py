"""Tool calls: the calls in completions, read in the model's format and checked against the tools of the row."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa

from operators.constraints.tool_schemas import Schema, schema_of_argument, whole
from operators.engine.backend.interface import Model
from operators.engine.sequence import Sequence
from operators.generation.reasoning import Reasoning, drawn, end_of_reasoning
from operators.generation.requests import batch_row
from operators.generation.tools import CHOICE, NONE, Tools, checks_of, unforced
from operators.prompts.messages import NoPrompt
from operators.prompts.tool_formats import ToolFormat, parse_calls
from operators.prompts.tool_readers import BrokenCall, ToolCall
from operators.rows.json_schema import Validate, validator
from pipeline.api.errors import ConfigError

TOOL_CALLS = (
    pa.field("tool_calls", pa.list_(pa.struct([("name", pa.string()), ("arguments", pa.string())]))),
    pa.field("tool_error", pa.string()),
)
_MOST_SCHEMAS = 256
_MOST_ARGUMENTS = 4096
_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""How chat templates write these, and so models."""


class AnswerParts(NamedTuple):
    """The parts of an answer. `content`: None: it is as it was drawn. `calls`: None: there are none."""

    content: str | None = None
    calls: list[dict[str, str]] | None = None
    error: str | None = None


class ToolReader:
    """Reads the calls in finished rows.

    Args:
        tools: what rows may call.
        model: whose tokens.
        reasoning: its tags; None: it does not reason.
    """

    def __init__(self, tools: Tools, model: Model, reasoning: Reasoning | None) -> None:
        self._tools = tools
        self._model = model
        self._pieces = model.pieces()
        self._tags = None if reasoning is None else reasoning.tags
        self._names: dict[int, bytes] = {}
        self._of_job = None if tools.given is None else json.dumps(tools.given)

    def read(self, row: Sequence, *, reasoned: bool) -> AnswerParts:
        """Return the calls of a finished row. `reasoned`: it has reasoning, in which no call is looked for."""
        place = batch_row(row)
        data = place.batch.data

        def value(column: str) -> Any:
            return data.column(column)[place.index].as_py()

        choice = (value(CHOICE) if self._tools.by_row else None) or self._tools.choice
        if choice == NONE:
            return AnswerParts()
        text = drawn(row, self._pieces, self._bytes)
        if reasoned and self._tags is not None:
            end, begin = end_of_reasoning(text, 0, self._tags.closing.encode(), self._tags.next.encode())
            text = text[begin:] if end >= 0 else b""
        try:
            tools = self._of_job
            if tools is None and self._tools.column is not None:
                tools = json.dumps(self._tools.of_row(value(self._tools.column)))
            return answer_of(self._tools.form, text.decode("utf-8", "replace"), tools or "[]", choice)
        except NoPrompt as error:
            return AnswerParts(error=str(error))

    def _bytes(self, token: int) -> bytes:
        """Return the bytes of a token; of a control token those of its name."""
        if self._pieces[token]:
            return self._pieces[token]
        if token not in self._names:
            self._names[token] = self._model.special_tokens.texts.get(token, "").encode()
        return self._names[token]


def answer_of(form: ToolFormat, text: str, tools: str, choice: str) -> AnswerParts:
    """Return the calls in the text of an answer.

    Args:
        form: the format of the calls.
        tools: those of the row, as JSON.
        choice: its `sampling.tools`; a call that was to be forced and is not there is an error.
    """
    if tools == "[]":
        return AnswerParts()
    try:
        content, written = parse_calls(form, text)
        checks = checks_of(tools) if written else {}
        calls = [_checked(form, call, checks, tools) for call in written]
        if (reason := unforced(choice, [call["name"] for call in calls])) is not None:
            raise BrokenCall(reason)
    except (BrokenCall, ConfigError) as error:
        return AnswerParts(error=str(error))
    return AnswerParts(content, calls) if calls else AnswerParts()


def _checked(form: ToolFormat, call: ToolCall, checks: Mapping[str, Validate], tools: str) -> dict[str, str]:
    """Return a call with its arguments as JSON. Raises BrokenCall if they do not keep the tool's schema."""
    name, arguments = call.name, call.arguments
    if name not in checks:
        raise BrokenCall(f"'{name}' is called, and the tools are {', '.join(checks)}")
    if form.arguments == "tags":
        arguments = _typed(name, arguments, tools)
    if (breach := checks[name](arguments)) is not None:
        raise BrokenCall(f"the arguments of {name}: {breach}")
    try:
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (name + written).encode()
    except ValueError as error:  # a number beyond a double, half a character
        raise BrokenCall(f"the arguments of {name} cannot be written as JSON: {error}") from error
    return {"name": name, "arguments": written}


@functools.lru_cache(_MOST_SCHEMAS)
def _whole(name: str, tools: str) -> Schema:
    function = next(tool["function"] for tool in json.loads(tools) if tool["function"]["name"] == name)
    return whole(function.get("parameters") or {}, closed=False)


@functools.lru_cache(_MOST_ARGUMENTS)
def _accepts(name: str, argument: str, tools: str) -> Validate:
    return validator(schema_of_argument(_whole(name, tools), argument), f"the argument {argument} of {name}")


def _finite(text: str) -> float:
    """Return a number that JSON has. Raises ValueError for others, NaN, and what no double holds."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no number of JSON")
    return value


def _typed(name: str, arguments: dict[str, Any], tools: str) -> dict[str, Any]:
    """Return arguments that were written without quotes: what is JSON of a value that is no text and fits the schema of
    the argument is that value, all else a text."""
    typed: dict[str, Any] = {}
    for key, text in arguments.items():
        typed[key] = text
        with suppress(ValueError, RecursionError):
            value = json.loads(_PYTHON.get(text.strip(), text), parse_float=_finite, parse_constant=_finite)
            accepts = _accepts(name, key, tools)
            if not isinstance(value, str) and (accepts(value) is None or accepts(text) is not None):
                typed[key] = value  # if neither fits, the value says best what is wrong with it
    return typed
