"""Completions of a server: answers become columns, and rejects where they are none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from operators.endpoint.api.answers import Answer
from operators.endpoint.rows import EndpointRow
from operators.generation.completions import LOGPROBS, REASONING, TEXT, CompletionColumns, completion_fields
from operators.generation.structured import row_check
from operators.generation.tool_calls import TOOL_CALLS
from operators.generation.tools import CHOICE, checks_of, unforced
from operators.prompts.arguments import tools_of_row
from operators.settings import SamplingSettings
from pipeline.api.errors import ConfigError
from pipeline.api.records import python_values

_ENTRY = pa.struct([pa.field("token", pa.string()), pa.field("logprob", pa.float32())])
TOP_LOGPROBS = pa.field("top_logprobs", pa.list_(pa.list_(_ENTRY)))
"""The likeliest tokens by their text: a server does not say their ids."""


def answer_fields(sampling: SamplingSettings, *, reasons: bool, calls: bool) -> list[pa.Field]:
    """Return the columns of a server's completion: those of a local one, with tokens as texts."""
    columns = completion_fields(sampling, keep_ids=False, reasons=reasons, calls=calls)
    return [TOP_LOGPROBS if field.name == TOP_LOGPROBS.name else field for field in columns]


class AnswerColumns(CompletionColumns[EndpointRow]):
    """Makes batches and rejects from answered rows.

    Args:
        kept, fields, schema: see CompletionColumns.
        check: returns why a text is not that, or None; None: rows have schemas of their own, or there is no constraint.
        sampling: what a text has to be, and which call is forced.
        tools: the tools of every row as JSON; None: there are none, or each row has its own.
        tools_column: the column with a row's own tools, if there is one.
    """

    def __init__(
        self,
        kept: Sequence[str],
        fields: Sequence[pa.Field],
        schema: pa.Schema,
        check: Callable[[str], str | None] | None,
        sampling: SamplingSettings,
        tools: str | None,
        tools_column: str | None = None,
    ) -> None:
        super().__init__(kept, fields, schema)
        self._schema_column = sampling.structured.json_schema_column
        self._check = check
        self._choice, self._per_row = sampling.tools, sampling.per_row
        self._tools, self._tools_column = tools, tools_column
        self._values: Mapping[str, Callable[[EndpointRow, Answer], Any]] = {
            TEXT: lambda row, answer: answer.text,
            "finish_reason": lambda row, answer: answer.finish_reason,
            "prompt_token_count": lambda row, answer: answer.prompt_tokens,
            "completion_token_count": lambda row, answer: answer.completion_tokens,
            "seed": lambda row, answer: row.seed,
            REASONING[0].name: lambda row, answer: answer.reasoning,
            REASONING[1].name: lambda row, answer: answer.reasoning_tokens,
            TOOL_CALLS[0].name: lambda row, answer: answer.tool_calls or None,
            TOOL_CALLS[1].name: self._tool_error,
            LOGPROBS.name: lambda row, answer: answer.logprobs,
            TOP_LOGPROBS.name: lambda row, answer: _top_logprobs(answer),
        }

    def _columns(self, rows: Sequence[EndpointRow]) -> Iterator[list[Any]]:
        for field in self._fields:
            yield [self._values[field.name](row, row.answer) for row in rows if row.answer is not None]

    def _text(self, row: EndpointRow) -> str:
        return "" if row.answer is None else row.answer.text

    def _misfit(self, row: EndpointRow) -> str | None:
        answer = row.answer
        if answer is None:
            return None
        if answer.refusal is not None:
            return f"the model refuses: {answer.refusal}"
        check = self._check
        if (column := self._schema_column) is not None:
            schema = _value(row, column)
            check = None if schema is None else row_check(schema, column)
        if check is None or answer.tool_calls:
            return None
        if answer.finish_reason == "length":
            return f"cut by max_tokens={row.max_tokens} before the text was what sampling.structured asks for"
        return check(answer.text)

    def _tool_error(self, row: EndpointRow, answer: Answer) -> str | None:
        """Return what is wrong with the calls: one that was to be forced is not there, or their arguments do not keep
        the tools' schemas."""
        choice = _value(row, CHOICE) if CHOICE in self._per_row else None
        reason = unforced(choice or self._choice, [call["name"] for call in answer.tool_calls])
        if reason is not None or not answer.tool_calls:
            return reason
        tools = self._tools
        if tools is None and (column := self._tools_column) is not None:
            tools = json.dumps(tools_of_row(_value(row, column), column))
        try:
            checks = {} if tools is None else checks_of(tools)
        except ConfigError as error:
            return str(error)
        for call in answer.tool_calls:
            name = call["name"]
            if name not in checks:
                return f"'{name}' is called, and the tools are {', '.join(checks) or 'none'}"
            try:
                breach = checks[name](json.loads(call["arguments"]))
            except (ValueError, RecursionError) as error:
                breach = f"no JSON: {error}"
            if breach is not None:
                return f"the arguments of {name}: {breach}"
        return None


def _value(row: EndpointRow, column: str) -> Any:
    return python_values(row.handle.batch.data.column(column).slice(row.handle.index, 1))[0]


def _top_logprobs(answer: Answer) -> list[list[tuple[str, float]]] | None:
    if answer.top_logprobs is None:
        return None
    return [[(token.token, token.logprob) for token in place] for place in answer.top_logprobs]
