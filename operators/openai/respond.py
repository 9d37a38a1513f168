"""Respond: merges all rows of a request into one row with the response."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from operators.engine.backend.loading import identity, load_model
from operators.openai.bodies import body_of, line_of
from operators.openai.requests import FIELDS
from operators.openai.values import Code, Fault
from operators.rows.token_lists import PROMPT_IDS
from operators.settings import ModelSettings
from pipeline.api import LINEAGE, ROW, Batch, Operator, Output, RejectKind, Runtime, require_column

_PARSED = ("custom_id", "url", "choices", "sample", "model", "prompt", "given_ids", "echo")
_FIELDS = [*map(FIELDS.field, (*_PARSED, "encoding_format", "dimensions")), PROMPT_IDS, LINEAGE, ROW]
_READ = {field.name: field.type for field in _FIELDS} | {
    "embedding": None,
    "completion": pa.string(),
    "completion_ids": PROMPT_IDS.type,
    "completion_token_count": pa.int32(),
    "finish_reason": pa.string(),
    "logprobs": None,
    "top_logprobs": None,
}
"""Columns that are read, and their types; None: any."""
_OPTIONAL = ("reasoning", "reasoning_token_count", "tool_calls")
"""Columns that are read where the model reasons and calls tools."""
_NAMES, _COUNTS = ("custom_id", "url", "model"), ("prompt_tokens", "completion_tokens")
SCHEMA = pa.schema(
    [*((name, pa.string()) for name in _NAMES), *((name, pa.int64()) for name in _COUNTS), ("output", pa.string()), ROW]
)
"""`output`: the line of output.jsonl."""


class Respond(Operator):
    """Makes the response of each request of ParseBatch, once all its choices have come.

    The rows of a request become one. If one of them was rejected on the way, there is no response, and the others are
    rejected as `filtered`: the error is the one that was rejected first.

    Args:
        model: has the tokens of log-probabilities, and the fingerprint that responses carry.
    """

    reads: Mapping[str, Any] = _READ

    def __init__(self, model: ModelSettings) -> None:
        self._settings = model
        self._open: dict[int, dict[int, list[tuple[Batch, int, dict[str, Any]]]]] = {}
        """The rows that have come, by chunk and source row: batch, index in it, and the row."""

    def plan(self, schema: pa.Schema) -> pa.Schema:
        """Check the input; return SCHEMA.

        Raises:
            SchemaError: a column of ParseBatch, Tokenize, Embed or Generate is missing.
        """
        for name, kind in self.reads.items():
            require_column(schema, name, None if kind is None else [kind])
        self._columns = [*self.reads, *(name for name in _OPTIONAL if name in schema.names)]
        return SCHEMA

    def fingerprint(self) -> dict[str, Any]:
        return identity(self._settings)

    def open(self, runtime: Runtime) -> None:
        model = load_model(runtime, self._settings)
        self._pieces = model.pieces()
        self._fingerprint = f"fp_{model.fingerprint()[-10:]}"

    def process(self, batch: Batch) -> Iterable[Output]:
        waiting = self._open.setdefault(batch.chunk, {})
        complete: list[dict[str, Any]] = []
        merged = 0
        for i, row in enumerate(batch.data.select(self._columns).to_pylist()):
            choices = waiting.setdefault(row[ROW.name], [])
            choices.append((batch, i, row))
            if len(choices) == row["choices"]:
                del waiting[row[ROW.name]]
                complete.append(self._answer([row for _, _, row in choices]))
                merged += len(choices) - 1
        if complete:
            yield batch.with_data(pa.RecordBatch.from_pylist(complete, schema=SCHEMA), expanded=-merged)

    def finish(self, chunk: int) -> Iterable[Output]:
        for rows in self._open.pop(chunk, {}).values():
            for batch, i, row in rows:
                why = f"{len(rows)} of the {row['choices']} choices of its request were made, and the others rejected"
                yield batch.reject([i], str(Fault(Code.INCOMPLETE, why)), RejectKind.FILTERED)

    def _answer(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        rows.sort(key=lambda row: row[LINEAGE.name][-1])
        first, body = rows[0], self._body(rows)
        line = line_of(first[ROW.name], first["custom_id"], body)
        about = {name: first[name] for name in (*_NAMES, ROW.name)}
        counts = {name: body["usage"].get(name, 0) for name in _COUNTS}
        return about | counts | {"output": json.dumps(line, ensure_ascii=False)}

    def _body(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        return body_of(rows, self._pieces, self._fingerprint)
