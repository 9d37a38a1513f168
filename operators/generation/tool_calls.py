"""Tool calls: the calls in completions, read in the model's format and checked against the tools of the row."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa

from operators.engine.backend.interface import Model
from operators.engine.sequence import Sequence
from operators.generation.reasoning import Reasoning, drawn, end_of_reasoning
from operators.generation.requests import batch_row
from operators.generation.tools import CHOICE, NONE, Tools, checks_of
from operators.prompts.messages import NoPrompt
from operators.prompts.tool_formats import parse_calls
from operators.prompts.tool_readers import BrokenCall
from operators.rows.json_schema import Validate
from pipeline.api.errors import ConfigError

TOOL_CALLS = (
    pa.field("tool_calls", pa.list_(pa.struct([("name", pa.string()), ("arguments", pa.string())]))),
    pa.field("tool_error", pa.string()),
)
_MOST_SCHEMAS = 256
_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""How chat templates write these, and so models."""


class Answer(NamedTuple):
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
        self._known: dict[int, bytes] = {}
        self._of_job = None if tools.given is None else json.dumps(tools.given)

    def read(self, row: Sequence, *, reasoned: bool) -> Answer:
        """Return the calls of a finished row. `reasoned`: it has reasoning, in which no call is looked for."""
        place = batch_row(row)
        data = place.batch.data

        def value(column: str) -> Any:
            return data.column(column)[place.index].as_py()

        choice = (value(CHOICE) if self._tools.by_row else None) or self._tools.choice
        if choice == NONE:
            return Answer()
        text = drawn(row, self._pieces, self._bytes)
        if reasoned and self._tags is not None:
            end, begin = end_of_reasoning(text, 0, self._tags.closing.encode(), self._tags.next.encode())
            text = text[begin:] if end >= 0 else b""
        try:
            tools = self._of_job
            if tools is None and self._tools.column is not None:
                tools = json.dumps(self._tools.of_row(value(self._tools.column)))
            return self._answer(text.decode("utf-8", "replace"), tools or "[]")
        except NoPrompt as error:
            return Answer(error=str(error))

    def _answer(self, text: str, tools: str) -> Answer:
        if tools == "[]":
            return Answer()
        try:
            found = parse_calls(self._tools.form, text)
            if not found.calls:
                return Answer()
            checks = checks_of(tools)
            calls = [self._call(call.name, call.arguments, checks, tools) for call in found.calls]
        except (BrokenCall, ConfigError) as error:
            return Answer(error=str(error))
        return Answer(found.content, calls)

    def _call(self, name: str, arguments: dict[str, Any], checks: Mapping[str, Validate], tools: str) -> dict[str, str]:
        if name not in checks:
            raise BrokenCall(f"'{name}' is called, and the tools are {', '.join(checks)}")
        if self._tools.form.arguments == "tags":
            arguments = _typed(arguments, _schema(name, tools))
        if (breach := checks[name](arguments)) is not None:
            raise BrokenCall(f"the arguments of {name}: {breach}")
        try:
            written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
            (name + written).encode()
        except ValueError as error:  # a number beyond a double, half a character
            raise BrokenCall(f"the arguments of {name} cannot be written as JSON: {error}") from error
        return {"name": name, "arguments": written}

    def _bytes(self, token: int) -> bytes:
        """Return the bytes of a token; of a control token those of its name."""
        if self._pieces[token]:
            return self._pieces[token]
        if token not in self._known:
            self._known[token] = self._model.special_tokens.texts.get(token, "").encode()
        return self._known[token]


@functools.lru_cache(_MOST_SCHEMAS)
def _schema(name: str, tools: str) -> Mapping[str, Any]:
    found = next(tool["function"] for tool in json.loads(tools) if tool["function"]["name"] == name)
    return found.get("parameters") or {}


def _typed(arguments: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that were written without quotes, with the types of their schema: what is no text is JSON."""
    kinds = {key: part.get("type") for key, part in schema.get("properties", {}).items() if isinstance(part, dict)}
    made = {}
    for key, text in arguments.items():
        made[key] = text
        if kinds.get(key) not in ("string", None):
            with suppress(ValueError, RecursionError):  # the schema says what is wrong with it
                made[key] = json.loads(_PYTHON.get(text, text))
    return made
