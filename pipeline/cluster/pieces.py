"""Pieces: contiguous rows of one chunk, the unit of work of a worker; its answer to one, and what it reports."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from pipeline.api.meter import Reading, RowCounts
from pipeline.api.numbers import Number
from pipeline.api.records import Batch, Reject
from pipeline.api.runtime import CHUNK

_ANY = -1
"""Stands for the piece of lines that are about no row."""


@dataclass(eq=False)
class WorkItem:
    """Rows to be computed by one worker.

    Args:
        number: counts the pieces of a run; a smaller one is older.
        segment: that computes it.
        batch: the rows, of one chunk.
        round_rows: source rows per round of a run under a target, None while they are unknown.
        deaths: workers that ended while they had it.
        deaths_alone: of these, those that had nothing else.
    """

    number: int
    segment: str
    batch: Batch
    round_rows: int | None = None
    deaths: int = 0
    deaths_alone: int = 0

    @property
    def num_rows(self) -> int:
        return self.batch.num_rows

    def halves(self, numbers: Iterator[int]) -> list[WorkItem]:
        """Return two pieces with half of the rows each; none if there is only one row."""
        if self.num_rows < 2:
            return []
        middle = self.num_rows // 2
        parts = (self.batch.data.slice(0, middle), self.batch.data.slice(middle))
        return [
            WorkItem(next(numbers), self.segment, self.batch.with_data(part), self.round_rows, self.deaths)
            for part in parts
        ]


@dataclass(frozen=True)
class WorkRequest:
    """A piece as it is sent to a worker. `rows`: of `chunk`, an Arrow IPC stream."""

    number: int
    segment: str
    chunk: int
    rows: bytes
    round_rows: int | None


@dataclass(frozen=True)
class TableRows:
    """Lines that a worker added to a metrics table. `rows`: an Arrow IPC stream."""

    name: str
    rows: bytes


@dataclass(frozen=True)
class WorkerReport:
    """Counters and records of a worker, sent when it is asked for them.

    Args:
        meters: of all its nodes and parts by name, since the worker began.
        totals: of the run, counted by this worker since it began.
        numbers: what they are.
        tables: lines of metrics tables about no row, since the last report.
        log: level, logger and text of log records since the last report.
    """

    meters: Mapping[str, Reading] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)
    numbers: Mapping[str, Number] = field(default_factory=dict)
    tables: Sequence[TableRows] = ()
    log: Sequence[tuple[int, str, str]] = ()


@dataclass(frozen=True)
class WorkResult:
    """The result of a piece.

    Args:
        rows: an Arrow IPC stream of the rows that came out, sorted by (row, lineage).
        rejects: by node.
        counts: row counts of each node of the segment.
        tables: lines of metrics tables about its rows.
    """

    rows: bytes
    rejects: Sequence[tuple[str, Sequence[Reject]]]
    counts: Mapping[str, RowCounts]
    tables: Sequence[TableRows] = ()


class Cutter:
    """Cuts the batches that come to a segment into pieces of `rows` rows, and of fewer at the end of a chunk."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._held: list[Batch] = []

    def add(self, batch: Batch) -> Iterator[Batch]:
        """Yield the pieces that are full with `batch`."""
        if self._held and self._held[0].chunk != batch.chunk:  # an input that is ahead of another
            yield from self.flush()
        self._held.append(batch)
        if sum(held.num_rows for held in self._held) >= self._rows:
            yield from self._cut()

    def flush(self) -> Iterator[Batch]:
        """Yield the rows that are held."""
        yield from self._cut(least=1)

    def _cut(self, least: int | None = None) -> Iterator[Batch]:
        """Yield pieces; hold a last one of fewer rows than `least`, default those of a piece."""
        if not self._held:
            return
        first = self._held[0]
        data = pa.concat_batches([held.data for held in self._held])
        self._held = []
        for begin in range(0, data.num_rows, self._rows):
            part = first.with_data(data.slice(begin, self._rows))
            if part.num_rows < (least or self._rows):
                self._held = [part]
            else:
                yield part


def to_ipc(data: pa.RecordBatch) -> bytes:
    """Return `data` as an Arrow IPC stream of one batch; a slice takes no more than its own rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_batch(data)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return all rows of `table` as one batch."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def from_ipc(content: bytes) -> pa.RecordBatch:
    """Return the batch of an Arrow IPC stream."""
    with pa.ipc.open_stream(content) as reader:  # a reader of whole tables takes twice as long
        batch: pa.RecordBatch = reader.read_next_batch()
    return batch


class SegmentTables:
    """The metrics tables of one segment. Lines about rows are sent with the answer to their piece, others with a
    report."""

    def __init__(self) -> None:
        self._tables: dict[str, _Lines] = {}

    def get(self, name: str, schema: pa.Schema) -> _Lines:
        return self._tables.setdefault(name, _Lines(name, schema))

    def take(self, piece: int = _ANY, chunk: int = 0) -> list[TableRows]:
        """Return the lines about rows of `piece`, as rows of `chunk`; without it, those about no row since the last
        call."""
        return [rows for table in list(self._tables.values()) for rows in table.take(piece, chunk)]


class _Lines:
    """Lines of a metrics table until they are sent, by piece."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self._name = name
        self._schema = schema
        self._chunk = schema.get_field_index(CHUNK)
        self._lock = threading.Lock()
        self._lines: dict[object, list[Sequence[object]]] = {}

    def append(self, *values: object) -> None:
        self.extend([[value] for value in values])

    def extend(self, columns: Sequence[Sequence[object]]) -> None:
        pieces = columns[self._chunk] if self._chunk >= 0 else [_ANY] * len(columns[0])
        with self._lock:
            for piece, line in zip(pieces, zip(*columns, strict=True), strict=True):
                self._lines.setdefault(piece, []).append(line)

    def take(self, piece: int, chunk: int) -> list[TableRows]:
        """Return the lines of `piece` in one batch, if there are any: the driver has to take those of all workers."""
        with self._lock:
            lines = self._lines.pop(piece, None)
        if not lines:
            return []
        columns: list[Sequence[object]] = list(zip(*lines, strict=True))
        if self._chunk >= 0:
            columns[self._chunk] = [chunk] * len(lines)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self._schema, strict=True)]
        return [TableRows(self._name, to_ipc(pa.record_batch(arrays, schema=self._schema)))]
