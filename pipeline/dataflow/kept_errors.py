"""KeptErrors: rows that stay although a node fails for them (`on_error: keep`), with the reason in a column.

The executor puts it around the operator, so operators do not know of it. All nodes of a step share one column: a row
that failed in one of them passes the others by.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.protocols import Inbox, Operator, Scope
from pipeline.api.records import LINEAGE, ROW, Batch, ChunkEnd, Item, Reject, RejectKind, Rejects, Shard, add_columns
from pipeline.system.known_secrets import hidden

STAY = b"stay"
"""Key of the column's metadata: the columns that its step or node was given, whose values stay. A column without it is
not of ours."""
Work = Callable[[Inbox], Iterator[Item | Shard]]
Note = Callable[[Rejects], None]
"""Takes the errors of rows that stay."""


class KeptErrors:
    """What `on_error: keep` does at one node: an error of a row becomes a row, with null in the columns that the node
    or its step adds.

    Args:
        column: where the reason goes; null in rows without an error.
        op: the node's operator.
        inputs: the schema of each input of the node.

    Raises:
        ConfigError: no row of this operator can stay.
        SchemaError: the input has such a column already.
    """

    def __init__(self, column: str, op: Operator, inputs: Sequence[pa.Schema]) -> None:
        if len(inputs) != 1 or not (op.scope is not Scope.RUN if op.keeps_rows is None else op.keeps_rows):
            raise ConfigError(
                f"on_error=keep keeps a row for which an operator of single rows fails, and {type(op).__name__} reads,"
                " writes, joins or chooses rows; in an operator of your own say scope = Scope.ROW if it does not"
            )
        self._by_batch = (type(op).run, type(op).finish) == (Operator.run, Operator.finish)
        (given,) = inputs
        self.column = column
        self._marked = column in given.names
        if self._marked and STAY not in (given.field(column).metadata or {}):
            add_columns(given, pa.field(column, pa.string()))  # refuses it
        self._stay: list[str] = json.loads(given.field(column).metadata[STAY]) if self._marked else given.names
        self.asked = pa.schema([field for field in given if field.name != column])
        """The columns that the operator sees."""

    def plan(self, made: pa.Schema | None) -> pa.Schema:
        """Return the schema of the node's output. `made`: what its operator plans."""
        if made is None:
            raise ConfigError("on_error=keep: it is a sink, and a row that cannot be written has nowhere to stay")
        if self.column in made.names:
            raise SchemaError(f"makes the column '{self.column}', in which on_error=keep puts reasons; rename it")
        came = {field.name: field for field in self.asked if field.name in self._stay}
        self._same = {f.name for f in made if f.name in came and came[f.name].type == f.type}
        never_null = {name for name in self._same if not came[name].nullable}
        fields = [f if f.name in never_null else f.with_nullable(True) for f in made]
        error = pa.field(self.column, pa.string(), metadata={STAY: json.dumps(self._stay)})
        self.schema = pa.schema([*fields, error])
        return self.schema

    def run(self, work: Work, inbox: Inbox, note: Note, *, at_once: bool = False) -> Iterator[Item | Shard]:
        """Yield what `work` makes of the rows of `inbox`, under `schema`, with a row in place of each error of one.

        Args:
            work: `run` of the operator, or what stands for it.
            at_once: it may take all rows before it yields.
        """
        flight = _InFlight(self, inbox, by_batch=self._by_batch and not at_once)
        items = work(flight)
        try:
            for item in items:
                yield from flight.passed_by()
                if isinstance(item, Batch):
                    yield replace(item, data=self.without_errors(item.data))
                elif isinstance(item, Rejects):
                    yield from flight.kept(item, note)
                else:
                    yield item
                if isinstance(item, ChunkEnd):
                    flight.end(item.chunk)
        finally:
            if isinstance(items, Generator):
                items.close()

    def split(self, batch: Batch) -> tuple[Batch, Batch | None]:
        """Return the rows for the operator, and those that pass it by since they have failed before."""
        if not self._marked:
            return batch, None
        errors = batch.data.column(self.column)
        asked = batch.data.select(self.asked.names)
        if errors.null_count == len(errors):
            return batch.with_data(asked), None
        failed = batch.data.filter(pc.is_valid(errors))
        passing = self.rows(failed, failed.column(self.column))
        return batch.with_data(asked.filter(pc.is_null(errors))), batch.with_data(passing)

    def without_failed(self, data: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of the node's output that have no error."""
        return data.filter(pc.is_null(data.column(self.column)))

    def held(self, data: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of rows for the operator that are needed if they fail."""
        identity = (ROW.name, LINEAGE.name)
        return data.select([n for n in data.schema.names if n in self._same or n in identity])

    def without_errors(self, data: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the operator's output with null as their error."""
        columns = [data.column(name) for name in self.schema.names if name != self.column]
        return pa.record_batch([*columns, pa.nulls(data.num_rows, pa.string())], schema=self.schema)

    def rows(self, data: pa.RecordBatch, reasons: pa.Array, lineages: pa.Array | None = None) -> pa.RecordBatch:
        """Return rows as they leave with an error: `data` with null in all columns that are new. `lineages`: None for
        their own."""
        if lineages is None and LINEAGE.name in data.schema.names:
            lineages = data.column(LINEAGE.name)
        columns = [data.column(f.name) if f.name in self._same else pa.nulls(len(data), f.type) for f in self.schema]
        made = dict(zip(self.schema.names, columns, strict=True)) | {self.column: reasons}
        if LINEAGE.name in made and lineages is not None:
            made[LINEAGE.name] = lineages
        return pa.record_batch(list(made.values()), schema=self.schema)


def through_all(keepers: Sequence[KeptErrors], data: pa.RecordBatch, reason: str) -> pa.RecordBatch:
    """Return rows as they leave a chain of nodes, one for each of `keepers`, that has failed for them as a whole."""
    reasons = pa.array([reason] * data.num_rows, pa.string())
    for keeper in keepers:
        data = keeper.rows(data, reasons)
    return data


class _InFlight:
    """The inbox of a kept operator: it holds the rows that the operator has, and those that pass it by.

    Rows are held until their chunk ends, or their batch is done in an operator that goes batch by batch.
    """

    def __init__(self, keeper: KeptErrors, inbox: Inbox, *, by_batch: bool) -> None:
        self._keeper, self._inbox, self._by_batch = keeper, inbox, by_batch
        self._held: dict[int, _Held] = defaultdict(_Held)
        self._passing: list[Batch] = []
        self.wait, self.wake = inbox.wait, inbox.wake

    @property
    def exhausted(self) -> bool:
        return self._inbox.exhausted

    def poll(self) -> Item | None:
        while isinstance(item := self._inbox.poll(), Batch):
            asked, passing = self._keeper.split(item)
            if passing is not None:
                self._passing.append(passing)
            if asked.num_rows or passing is None:
                if self._by_batch:
                    self._held.clear()
                self._held[item.chunk].batches.append(self._keeper.held(asked.data))
                return asked
        return item

    def __iter__(self) -> Iterator[Item]:
        while True:
            if (item := self.poll()) is not None:
                yield item
            elif self.exhausted:
                return
            else:
                self.wait()

    def passed_by(self) -> list[Batch]:
        """Return and forget the rows that pass the operator by."""
        passing, self._passing = self._passing, []
        return passing

    def end(self, chunk: int) -> None:
        """Forget the rows of a chunk, which has ended."""
        self._held.pop(chunk, None)

    def kept(self, rejects: Rejects, note: Note) -> Iterator[Batch | Rejects]:
        """Yield errors of rows as rows, and other rejects as they are: those of a filter, and of rows that the operator
        was not given."""
        held = self._held[rejects.chunk]
        places = {i: p for i, r in enumerate(rejects.rows) if r.kind is RejectKind.ERROR and (p := held.place(r))}
        if len(places) < rejects.num_rows:
            yield replace(rejects, rows=tuple(r for i, r in enumerate(rejects.rows) if i not in places))
        if places:
            failed = [replace(r, reason=hidden(r.reason)) for i, r in enumerate(rejects.rows) if i in places]
            reasons = pa.array([reject.reason for reject in failed], pa.string())
            data = pa.concat_batches([held.batches[batch].slice(row, 1) for batch, row in places.values()])
            lineages = pa.array([reject.lineage for reject in failed], LINEAGE.type)
            note(replace(rejects, rows=tuple(failed)))
            yield Batch(rejects.chunk, self._keeper.rows(data, reasons, lineages))


class _Held:
    """Rows of a chunk that an operator has, found by (row, lineage)."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self._known = 0
        self._places: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}

    def place(self, reject: Reject) -> tuple[int, int] | None:
        """Return which batch has the row, and where: the row itself, or the one that it is a sample of."""
        for number, data in enumerate(self.batches[self._known :], self._known):
            rows = data.column(ROW.name).to_pylist()
            has_lineage = LINEAGE.name in data.schema.names
            lineages = data.column(LINEAGE.name).to_pylist() if has_lineage else [None] * len(rows)
            found = ((row, tuple(lineage or ())) for row, lineage in zip(rows, lineages, strict=True))
            self._places |= {identity: (number, i) for i, identity in enumerate(found)}
        self._known = len(self.batches)
        lineage = reject.lineage or ()
        return self._places.get((reject.row, lineage)) or self._places.get((reject.row, lineage[:-1]))
