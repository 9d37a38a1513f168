"""The items that travel on edges: Batch, Rejects, ChunkEnd, Shard.

A row is identified everywhere by (`row`, `lineage`): `row` int64 is its position in the source, `lineage` list<int32>
has one number for each expansion it went through and is absent before the first one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from pipeline.api.errors import SchemaError

ROW = pa.field("row", pa.int64(), nullable=False)
LINEAGE = pa.field("lineage", pa.list_(pa.int32()))
SUPERSEDES = pa.field("supersedes", pa.int64(), metadata={"added by": "append_changed=again"})
"""The number of the row whose content has changed; null in a row that is no newer one of another. Its metadata tell it
from a column of the input that has the same name."""

RejectFiles = tuple[str, Callable[[pa.Table, BinaryIO], object]]
"""The ending of the names of files in rejects/, without the dot, and what writes a table of rejects into one."""
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

_NOT_HELD = (pa.ArrowException, ValueError, OverflowError, KeyError)
"""What is raised for a value that Python cannot hold; KeyError by pytz for a zone."""
LONGEST_REASON = 2000
"""Most characters of the reason of a reject: an error may hold a whole row, and reasons are counted in the state."""


class RejectKind(StrEnum):
    """Kind of a reject: `error` counts towards `max_error_rate`; `filtered` was removed on purpose."""

    ERROR = "error"
    FILTERED = "filtered"


KEPT = "kept"
"""In place of a kind, where rejects are counted: rows with an error that stay (`on_error: keep`), in data/ alone."""


@dataclass(frozen=True, slots=True)
class Reject:
    """One row that leaves the graph.

    Args:
        row: position in the source.
        reason: the cause and, if there is one, the remedy; without its middle, if it has more than LONGEST_REASON
            characters.
        record: the row as JSON, or the raw line that did not parse.
        lineage: None before any expansion.
        file, line: position in the input, for rows that failed to parse; `line` counts from 1.
    """

    row: int
    reason: str
    record: str | None = None
    kind: RejectKind = RejectKind.ERROR
    lineage: tuple[int, ...] | None = None
    file: str | None = None
    line: int | None = None

    def __post_init__(self) -> None:
        if (beyond := len(self.reason) - LONGEST_REASON) > 0:
            half = LONGEST_REASON // 2
            short = f"{self.reason[:half]} ... ({beyond:,} more characters) ... {self.reason[-half:]}"
            object.__setattr__(self, "reason", short)


@dataclass(frozen=True, slots=True)
class Rejects:
    """Rejected rows of one chunk, sent before its ChunkEnd. The outbox sets `node`, in a worker of a cluster too."""

    chunk: int
    rows: tuple[Reject, ...]
    node: str = ""

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def to_arrow(self) -> pa.RecordBatch:
        """Return the rows under REJECT_SCHEMA."""
        columns = {n: [getattr(reject, n) for reject in self.rows] for n in REJECT_SCHEMA.names if n != "node"}
        return pa.RecordBatch.from_pydict({**columns, "node": [self.node] * self.num_rows}, schema=REJECT_SCHEMA)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one chunk.

    Args:
        chunk: the chunk that all rows belong to; a batch never mixes chunks.
        data: the rows; shared by all readers, never changed.
        expanded: number of these rows minus the number of rows they were made from (0: one for one).
        port: index of the reader's input on which it arrived.
        told: what the user must know of rows in it, each with the number of the row; counted where it is sent
            (`StageMeter.tell`), and not passed on.
    """

    chunk: int
    data: pa.RecordBatch
    expanded: int = 0
    port: int = 0
    told: tuple[tuple[int, str], ...] = ()

    @property
    def num_rows(self) -> int:
        return int(self.data.num_rows)

    def with_data(self, data: pa.RecordBatch, *, expanded: int = 0, told: Iterable[tuple[int, str]] = ()) -> Batch:
        """Return a batch of the same chunk with other rows."""
        return Batch(self.chunk, data, expanded, told=tuple(told))

    def at_port(self, port: int) -> Batch:
        """Return the batch as received on input `port`, with `expanded` 0 and nothing told; the same object if nothing
        changes."""
        same = self.port == port and not self.expanded and not self.told
        return self if same else replace(self, port=port, expanded=0, told=())

    def reject(
        self, indices: Sequence[int], reasons: Sequence[str] | str, kind: RejectKind = RejectKind.ERROR
    ) -> Rejects:
        """Return rejects for the rows at `indices`, with one reason for each or one for all."""
        taken = python_rows(self.data.take(pa.array(indices, pa.int64())))
        each = [reasons] * len(indices) if isinstance(reasons, str) else reasons
        return Rejects(self.chunk, tuple(_reject(r, why, kind) for r, why in zip(taken, each, strict=True)))


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """The end of a chunk: none of its items follow. Chunks end in order at every node. `rows`: source rows in it."""

    chunk: int
    rows: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A complete, fsynced file of one chunk, under a temporary name until the chunk is committed.

    Args:
        path: the final path.
        temporary: the current path, on the same file system.
        size_bytes, sha256: of the file.
        schema: the columns; kept here since not every format stores them.
        rejects: for a file of rejects, the rows by (node, kind, reason).
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


def python_rows(data: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return each row as a dict of `python_values`."""
    columns = [python_values(column) for column in data.columns]
    if not columns:
        return [{} for _ in range(data.num_rows)]
    return [dict(zip(data.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def python_values(column: pa.Array) -> list[Any]:
    """Return the values of a column of any type; texts (`_as_text`) for what Python cannot hold, as years over 9999."""
    try:
        values = list(column.to_pylist())
        if not holds_times(column.type) or pa.array(values, column.type).equals(column):
            return values
    except _NOT_HELD:
        pass
    return [_python_value(value) for value in column]


def _python_value(value: pa.Scalar) -> Any:
    kind = value.type
    if not value.is_valid:
        return None
    try:
        found = value.as_py()
        if not holds_times(kind) or pa.scalar(found, kind).equals(value):
            return found
    except _NOT_HELD:
        pass
    if pa.types.is_map(kind):
        return [(_python_value(pair[0]), _python_value(pair[1])) for pair in value.values]
    if isinstance(value, pa.ListScalar):
        return [_python_value(inner) for inner in value.values]
    if pa.types.is_struct(kind) and len(names := [field.name for field in kind]) == len(set(names)):
        return {name: _python_value(value[name]) for name in names}
    inner = getattr(value, "value", None)  # of a dictionary, a union, an extension
    return _python_value(inner) if isinstance(inner, pa.Scalar) else _as_text(value)


def holds_times(kind: pa.DataType) -> bool:
    """Return True for types whose values may come out of Python as other ones: a duration as NaT, a time cut off."""
    inner = [kind.value_type] if pa.types.is_dictionary(kind) else [kind.field(i).type for i in range(kind.num_fields)]
    return pa.types.is_temporal(kind) or any(map(holds_times, inner))


def _as_text(value: pa.Scalar) -> str:
    """Return a value as Arrow prints it, an instant in UTC; durations, and what is no date for Arrow either, as a
    number with its unit."""
    kind, text = value.type, " ".join(pa.repeat(value, 1).to_string().split())
    if pa.types.is_duration(kind) or "value out of range" in text:
        unit = "days" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
        since = " since 1970-01-01" if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else ""
        return f"{value.value} {unit}{since}"
    return text[2:-2] if text.startswith("[ ") else text


def record_json(record: object) -> str:
    """Return a row, or a value of it, as JSON; values without a JSON type become strings."""
    return _to_json(record)


def value_as_text(value: object) -> str:
    """Return a value without a JSON type as text; of bytes that are long or no text, as an image's, how many."""
    if isinstance(value, bytes) and (len(value) > 1024 or "\ufffd" in value.decode("utf-8", "replace")):
        return f"({len(value):,} bytes)"
    return value.decode() if isinstance(value, bytes) else str(value)


_to_json = json.JSONEncoder(ensure_ascii=False, default=value_as_text).encode  # json.dumps would make one for each row


def require_column(schema: pa.Schema, name: str, accepts: Sequence[pa.DataType] | None = None) -> pa.Field:
    """Return the field `name` of `schema`. Raises SchemaError if it is missing, or its type is not in `accepts` (None
    for any)."""
    if name not in schema.names:
        raise SchemaError(f"needs a column '{name}'; the input has {', '.join(schema.names) or 'none'}")
    found = schema.field(name)
    if accepts is not None and found.type not in accepts:
        wanted = " or ".join(str(t) for t in accepts)
        raise SchemaError(f"column '{name}' has type {found.type}; it must be {wanted}")
    return found


def add_columns(schema: pa.Schema, *fields: pa.Field) -> pa.Schema:
    """Return `schema` with `fields` appended. Raises SchemaError if it has a column of such a name already."""
    for new in fields:
        if new.name in schema.names:
            raise SchemaError(
                f"would write the column '{new.name}', which the input has already; rename that input column, or,"
                f" where an earlier node made it, take it out with Select before this node (drop: [{new.name}])"
            )
        schema = schema.append(new)
    return schema


def without_null(kind: pa.DataType) -> pa.DataType:
    """Return `kind` with string in place of null, the type of values that were not seen, also inside of it."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(without_null(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, without_null(field.type)) for field in kind])
    return kind


def holds_nothing(kind: pa.DataType) -> bool:
    """Return True for a struct without fields, also inside of `kind`."""
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return (pa.types.is_struct(kind) and not inner) or any(map(holds_nothing, inner))
