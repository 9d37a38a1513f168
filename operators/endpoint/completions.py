"""Completions of a server: answers become columns, and rejects where they are none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from operators.endpoint.api.answers import Answer
from operators.endpoint.rows import EndpointRow
from operators.generation.completions import LOGPROBS, REASONING, TEXT, completion_fields
from operators.generation.structured import row_check
from operators.generation.tool_calls import TOOL_CALLS
from operators.generation.tools import CHOICE, checks_of, unforced
from operators.prompts.arguments import tools_of_row
from operators.settings import SamplingSettings
from pipeline.api.errors import ConfigError
from pipeline.api.records import Batch, Rejects, python_values

_ENTRY = pa.struct([pa.field("token", pa.string()), pa.field("logprob", pa.float32())])
TOP_LOGPROBS = pa.field("top_logprobs", pa.list_(pa.list_(_ENTRY)))
"""The likeliest tokens by their text: a server does not say their ids."""


def answer_fields(sampling: SamplingSettings, *, reasons: bool, calls: bool) -> list[pa.Field]:
    """Return the columns of a server's completion: those of a local one, with tokens as texts."""
    made = completion_fields(sampling, keep_ids=False, reasons=reasons, calls=calls)
    return [TOP_LOGPROBS if field.name == TOP_LOGPROBS.name else field for field in made]


class AnswerColumns:
    """Makes batches and rejects from answered rows.

    Args:
        kept: the columns of their batch that are passed on.
        fields: the columns of the completion, of `answer_fields`.
        schema: all of them, under the names that they get.
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
        self._kept, self._fields, self._schema = kept, fields, schema
        self._schema_column = sampling.structured.json_schema_column
        self._check = check
        self._choice, self._per_row = sampling.tools, sampling.per_row
        self._tools, self._tools_column = tools, tools_column
        self._values: Mapping[str, Callable[[Answer], Any]] = {
            TEXT: lambda answer: answer.text,
            "finish_reason": lambda answer: answer.finish_reason,
            "prompt_token_count": lambda answer: answer.prompt_tokens,
            "completion_token_count": lambda answer: answer.completion_tokens,
            REASONING[0].name: lambda answer: answer.reasoning,
            REASONING[1].name: lambda answer: answer.reasoning_tokens,
            TOOL_CALLS[0].name: lambda answer: answer.tool_calls or None,
            LOGPROBS.name: lambda answer: answer.logprobs,
            TOP_LOGPROBS.name: _top_logprobs,
        }

    def items(self, rows: Iterable[EndpointRow]) -> Iterator[Batch | Rejects]:
        """Yield rejects for the rows without a usable answer, then batches of the others."""
        groups: dict[int, list[EndpointRow]] = {}
        for row in rows:
            if row.answer is None:
                yield row.batch.reject([row.index], row.error or "it was not answered")
            elif (reason := self._misfit(row, row.answer)) is not None:
                name = self._schema.names[len(self._kept)]  # show the text in the reject's record
                alone = row.batch.data.slice(row.index, 1).append_column(name, pa.array([row.answer.text]))
                yield row.batch.with_data(alone).reject([0], reason)
            else:
                groups.setdefault(id(row.batch), []).append(row)
        for group in groups.values():
            yield self._batch(group[0].batch, group)

    def _batch(self, source: Batch, rows: Sequence[EndpointRow]) -> Batch:
        kept = source.data.select(self._kept).take(pa.array([row.index for row in rows], pa.int64()))
        made = []
        for field in self._fields:
            if field.name == "seed":
                values: list[Any] = [row.seed for row in rows]
            elif field.name == TOOL_CALLS[1].name:
                values = [self._tool_error(row, row.answer) for row in rows if row.answer is not None]
            else:
                value = self._values[field.name]
                values = [value(row.answer) for row in rows if row.answer is not None]
            made.append(pa.array(values, field.type))
        return source.with_data(pa.record_batch([*kept.columns, *made], schema=self._schema))

    def _misfit(self, row: EndpointRow, answer: Answer) -> str | None:
        """Return why the answer is not what `sampling.structured` asks for; None if it is."""
        if answer.refusal is not None:
            return f"the model refuses: {answer.refusal}"
        check = self._check
        if (column := self._schema_column) is not None:
            schema = row.batch.data.column(column)[row.index].as_py()
            check = None if schema is None else row_check(schema, column)
        if check is None or answer.tool_calls:
            return None
        if answer.finish_reason == "length":
            return f"cut by max_tokens={row.max_tokens} before the text was what sampling.structured asks for"
        return check(answer.text)

    def _tool_error(self, row: EndpointRow, answer: Answer) -> str | None:
        """Return what is wrong with the calls: one that was to be forced is not there, or their arguments do not keep
        the tools' schemas."""
        given = row.batch.data.column(CHOICE)[row.index].as_py() if CHOICE in self._per_row else None
        reason = unforced(given or self._choice, [call["name"] for call in answer.tool_calls])
        if reason is not None or not answer.tool_calls:
            return reason
        tools = self._tools
        if tools is None and (column := self._tools_column) is not None:
            tools = json.dumps(
                tools_of_row(python_values(row.batch.data.column(column).slice(row.index, 1))[0], column)
            )
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


def _top_logprobs(answer: Answer) -> list[list[tuple[str, float]]] | None:
    if answer.top_logprobs is None:
        return None
    return [[(one.token, one.logprob) for one in place] for place in answer.top_logprobs]
