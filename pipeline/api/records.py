"""The nouns that travel on edges: Batch, Rejects, ChunkEnd, Shard. Imports nothing of ours but the errors.

A row is identified everywhere by (`row`, `lineage`): `row` int64 is its position in the source, `lineage` list<int32>
has one number for each expansion it went through and is absent before the first one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.api.errors import SchemaError

ROW = pa.field("row", pa.int64(), nullable=False)
LINEAGE = pa.field("lineage", pa.list_(pa.int32()))
HALF_A_CHARACTER = (
    "half a character (an escape from \\ud800 to \\udfff without the other one); write the whole character"
)
"""The words of a reason for a lone surrogate, which JSON can write and UTF-8, and so Arrow, cannot hold."""

REJECT_SCHEMA = pa.schema(
    [
        ROW,
        LINEAGE,
        pa.field("node", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("file", pa.string()),
        pa.field("line", pa.int64()),
        pa.field("record", pa.string()),
    ]
)


class RejectKind(StrEnum):
    """The kind of a reject: `error` counts against `max_error_rate`, `filtered` was asked for."""

    ERROR = "error"
    FILTERED = "filtered"


@dataclass(frozen=True, slots=True)
class Reject:
    """One row that leaves the graph.

    Args:
        row: position in the source.
        reason: what was wrong and, where there is one, the remedy.
        record: the row as JSON (or the raw line that did not parse).
        lineage: its lineage, None before any expansion.
        file, line: where it was read, for rows that failed to parse (`line` counts from 1).
    """

    row: int
    reason: str
    record: str | None = None
    kind: RejectKind = RejectKind.ERROR
    lineage: tuple[int, ...] | None = None
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Rejects:
    """Rows of one chunk that a node took out, in-band ahead of the chunk's end. The outbox stamps `node`."""

    chunk: int
    rows: tuple[Reject, ...]
    node: str = ""

    @property
    def num_rows(self) -> int:
        """Rows that are rejected here."""
        return len(self.rows)

    def to_arrow(self) -> pa.RecordBatch:
        """Return the rows under REJECT_SCHEMA."""
        columns: list[list[Any]] = [
            [r.row for r in self.rows],
            [r.lineage for r in self.rows],
            [self.node] * len(self.rows),
            [r.kind.value for r in self.rows],
            [r.reason for r in self.rows],
            [r.file for r in self.rows],
            [r.line for r in self.rows],
            [r.record for r in self.rows],
        ]
        arrays = [pa.array(c, type=f.type) for c, f in zip(columns, REJECT_SCHEMA, strict=True)]
        return pa.record_batch(arrays, schema=REJECT_SCHEMA)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one chunk.

    Args:
        chunk: the chunk that all rows belong to; a batch never mixes chunks.
        data: the rows; shared by all readers, never changed.
        expanded: how many of these rows exist in addition to the rows they were made from (0: one for one).
        port: index of the input at which the reader received it.
    """

    chunk: int
    data: pa.RecordBatch
    expanded: int = 0
    port: int = 0

    @property
    def num_rows(self) -> int:
        """Rows in the batch."""
        return int(self.data.num_rows)

    def with_data(self, data: pa.RecordBatch, *, expanded: int = 0) -> Batch:
        """Return a batch of the same chunk with other rows."""
        return Batch(self.chunk, data, expanded)

    def at_port(self, port: int) -> Batch:
        """Return the batch as the reader's input `port` sees it; the same object if nothing changes."""
        return self if self.port == port and not self.expanded else replace(self, port=port, expanded=0)

    def reject(
        self, indices: Sequence[int], reasons: Sequence[str] | str, kind: RejectKind = RejectKind.ERROR
    ) -> Rejects:
        """Return rejects for the rows at `indices`, each with its own reason or all with one."""
        taken = _python_rows(self.data.take(pa.array(indices, pa.int64())))
        each = [reasons] * len(indices) if isinstance(reasons, str) else reasons
        return Rejects(self.chunk, tuple(_reject(r, why, kind) for r, why in zip(taken, each, strict=True)))


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """No item of chunk `chunk` follows. Leaves every node strictly in order. `rows`: source rows of the chunk."""

    chunk: int
    rows: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A finished, fsynced file of one chunk that waits under a temporary name for its commit.

    Args:
        chunk: the chunk that it holds.
        path: its final place.
        temporary: where it lies now, on the same file system.
        rows: rows in it.
        size_bytes, sha256: of the file.
        schema: the columns as a reader of the file sees them; a file of some formats does not say.
        rejects: in a file of rejects, the rows by (node, kind, reason).
    """

    chunk: int
    path: Path
    temporary: Path
    rows: int
    size_bytes: int
    sha256: str
    schema: pa.Schema
    rejects: Mapping[tuple[str, str, str], int] = field(default_factory=dict)


Item = Batch | Rejects | ChunkEnd
Output = Batch | Rejects | Shard


def _reject(record: dict[str, Any], reason: str, kind: RejectKind) -> Reject:
    lineage = record.pop(LINEAGE.name, None)
    return Reject(
        row=record.pop(ROW.name),
        reason=reason.encode("utf-8", "backslashreplace").decode(),  # it may quote a lone surrogate
        record=record_json(record),
        kind=kind,
        lineage=None if lineage is None else tuple(lineage),
    )


def _python_rows(data: pa.RecordBatch) -> list[dict[str, Any]]:
    columns = [_python_values(column) for column in data.columns]
    return [dict(zip(data.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def _python_values(column: pa.Array) -> list[Any]:
    """The values; as Arrow prints them where Python has none: years beyond 9999, nanoseconds without pandas, a struct
    with a name twice."""
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        each = (column.slice(i, 1) for i in range(len(column)))
        return [None if one.null_count else _printed(one) for one in each]


def _printed(value: pa.Array) -> str:
    text = " ".join(value.to_string().split())
    return text[2:-2] if text.startswith("[ ") else text


def record_json(record: dict[str, Any]) -> str:
    """Return a row as JSON for the rejects file; values that JSON does not know become strings."""
    return json.dumps(record, ensure_ascii=False, default=_jsonable)


def _jsonable(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def require_column(schema: pa.Schema, name: str, accepts: Sequence[pa.DataType] | None = None) -> pa.Field:
    """Return the field `name` of `schema`. `accepts`: the types that it may have, None for any.

    Raises:
        SchemaError: it is not there, or its type is none of `accepts`.
    """
    if name not in schema.names:
        raise SchemaError(f"needs a column '{name}'; the input has {', '.join(schema.names) or 'none'}")
    found = schema.field(name)
    if accepts is not None and found.type not in accepts:
        wanted = " or ".join(str(t) for t in accepts)
        raise SchemaError(f"column '{name}' has type {found.type}; it must be {wanted}")
    return found


def add_columns(schema: pa.Schema, *fields: pa.Field) -> pa.Schema:
    """Return `schema` with `fields` appended.

    Raises:
        SchemaError: the input has a column of that name already.
    """
    for new in fields:
        if new.name in schema.names:
            raise SchemaError(
                f"would write the column '{new.name}', which the input has already; rename that input column, or,"
                f" where an earlier node made it, take it out with Select before this node (drop: [{new.name}])"
            )
        schema = schema.append(new)
    return schema
