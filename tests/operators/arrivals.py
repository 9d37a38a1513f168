"""Runs one operator without threads, its rows cut into batches and mixed as a graph may mix them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from pipeline.api.protocols import ListInbox, remembers
from pipeline.api.records import Batch, ChunkEnd, Item, Rejects

Row = dict[str, Any]
Identity = tuple[int, tuple[int, ...]]


def batch(chunk: int, rows: Sequence[Row], schema: pa.Schema) -> Batch:
    return Batch(chunk, pa.RecordBatch.from_pylist(list(rows), schema=schema))


def in_order(chunks: Sequence[Sequence[Row]], schema: pa.Schema, first: int = 0) -> list[Item]:
    """A batch a chunk, the rows as they are."""
    items: list[Item] = []
    for chunk, rows in list(enumerate(chunks))[first:]:
        items += [batch(chunk, rows, schema), ChunkEnd(chunk, len(rows))]
    return items


@st.composite
def mixed(draw: st.DrawFn, chunks: Sequence[Sequence[Row]], schema: pa.Schema, first: int = 0) -> list[Item]:
    """The rows in any order and any batches, some of a chunk before the end of the chunk before it."""
    cuts = []
    for rows in chunks:
        size = draw(st.integers(1, 4))
        shuffled = draw(st.permutations(list(rows)))
        cuts.append([shuffled[i : i + size] for i in range(0, len(shuffled), size)])
    items: list[Item] = []
    early: list[Batch] = []
    for chunk in range(first, len(chunks)):
        batches = [batch(chunk, rows, schema) for rows in cuts[chunk]][len(early) :]
        following = cuts[chunk + 1] if chunk + 1 < len(chunks) else []
        early = [batch(chunk + 1, rows, schema) for rows in following[: draw(st.integers(0, len(following)))]]
        items += draw(st.permutations([*batches, *early]))
        items.append(ChunkEnd(chunk, len(chunks[chunk])))
    return items


class Outcome:
    """What an operator made of its items.

    After the run `rows` has the rows by their identity, `rejects` the reasons by theirs, `ended` the chunks that it
    ended, `states` what it remembered with each of them.
    """

    def __init__(self) -> None:
        self.rows: dict[Identity, Row] = {}
        self.rejects: dict[Identity, tuple[str, str]] = {}
        self.expanded = 0
        self.ended: list[int] = []
        self.states: dict[int, bytes] = {}

    def take(self, op: Any, items: Sequence[Item], until: int | None = None) -> Outcome:
        """Run `op`, which is planned, over `items`; stop behind the end of chunk `until`, as a run that is killed."""
        inbox = ListInbox(items)
        for item in op.run(inbox):
            if isinstance(item, Batch):
                self._rows(item)
            elif isinstance(item, Rejects):
                self._rejects(item)
            elif isinstance(item, ChunkEnd):
                self._end(op, item.chunk)
                if item.chunk == until:
                    break
        return self

    @property
    def told(self) -> tuple[object, ...]:
        """All that must not depend on order, batches or restarts."""
        return sorted(self.rows.items()), sorted(self.rejects.items()), self.expanded, self.ended

    def _rows(self, item: Batch) -> None:
        self.expanded += item.expanded
        for row in item.data.to_pylist():
            key = (row["row"], tuple(row.get("lineage") or ()))
            assert key not in self.rows
            self.rows[key] = row

    def _rejects(self, item: Rejects) -> None:
        for reject in item.rows:
            key = (reject.row, reject.lineage or ())
            assert key not in self.rejects
            self.rejects[key] = (reject.kind.value, reject.reason)

    def _end(self, op: Any, chunk: int) -> None:
        self.ended.append(chunk)
        if remembers(op):
            self.states[chunk] = op.state(chunk)


def resumed(op: Any, before: Outcome) -> Any:
    """`op`, which is new, with what was committed with the chunks of `before`."""
    if remembers(op):
        op.restore([before.states[chunk] for chunk in (before.ended if op.append else before.ended[-1:])])
    return op
