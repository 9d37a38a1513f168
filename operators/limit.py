"""Limit: keeps the first rows of the run, then stops reading."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from operators.rows.batches import HeldRows, split
from operators.settings.checks import check
from pipeline.api import ROW, Batch, ChunkEnd, Inbox, Item, Operator, Output, Shard, Stateful, require_column


class Limit(Operator, Stateful):
    """Keeps the first `rows` rows of the run, in the order of (row, lineage) and not of arrival.

    It decides when a chunk ends. The other rows of the chunk with the last one that fits become rejects of kind
    `filtered`. Then it leaves: later chunks are not read for it, and where no other branch needs them they are not read
    at all, nor generated, nor counted as rows of the run.

    Args:
        rows: how many are kept.

    Example:
        first_thousand:
          inputs: filter
          op:
            _target_: operators.limit.Limit
            rows: 1000
    """

    def __init__(self, rows: int) -> None:
        check(rows >= 1, "rows", rows, "it is 1 or more")
        self._rows = rows
        self._kept = 0
        self._held = HeldRows()

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, ROW.name, [ROW.type])
        return schema

    def run(self, inbox: Inbox) -> Iterator[Item | Shard]:
        if self._kept == self._rows:  # a resumed run that had them all
            return
        for item in super().run(inbox):
            yield item
            if isinstance(item, ChunkEnd) and self._kept == self._rows:
                return

    def process(self, batch: Batch) -> Iterable[Output]:
        self._held.hold(batch)
        return ()

    def finish(self, chunk: int) -> Iterable[Output]:
        if (batch := self._held.take(chunk)) is not None:
            keep = np.arange(batch.num_rows) < self._rows - self._kept
            self._kept += int(keep.sum())
            yield from split(batch, keep, f"beyond the first {self._rows} rows")

    def state(self, chunk: int) -> bytes:
        # Chunks are decided in order, so it counts no row of a later chunk.
        return json.dumps(self._kept).encode()

    def restore(self, states: Iterable[bytes]) -> None:
        (state,) = states
        self._kept = json.loads(state)
