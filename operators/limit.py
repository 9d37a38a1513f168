"""Limit: keeps the first rows of the run, then stops reading."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from operators.rows.batches import HeldRows, split
from operators.settings.checks import check
from pipeline.api.protocols import BaseOperator, Inbox
from pipeline.api.records import ROW, Batch, ChunkEnd, Item, Rejects, require_column


class Limit(BaseOperator):
    """Keeps the first `rows` rows of the run, in the order of (row, lineage) and not of arrival.

    What it decides, it decides when a chunk ends. The other rows of the chunk with the last one that fits become
    rejects of kind `filtered`. Then it leaves: chunks behind that one are not read for it, and where no other branch
    needs them they are not read at all, nor generated, nor counted as rows of the run.

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
        """Leaves the columns as they are.

        Raises:
            SchemaError: there is no `row`.
        """
        require_column(schema, ROW.name, [ROW.type])
        return schema

    def run(self, inbox: Inbox) -> Iterator[Item]:
        """Emit the rows of each chunk when it ends, until there are enough."""
        if self._kept == self._rows:  # a resumed run that had them all
            return
        for item in inbox:
            if isinstance(item, Batch):
                self._held.hold(item)
            elif isinstance(item, ChunkEnd):
                yield from self._decided(item.chunk)
                yield item
                if self._kept == self._rows:
                    return

    def state(self, chunk: int) -> bytes:
        """Return the number of rows kept. Chunks are decided in order, so it counts no row of a later chunk."""
        return json.dumps(self._kept).encode()

    def restore(self, states: Iterable[bytes]) -> None:
        (state,) = states
        self._kept = json.loads(state)

    def _decided(self, chunk: int) -> Iterator[Batch | Rejects]:
        batch = self._held.take(chunk)
        if batch is None:
            return
        keep = np.arange(batch.num_rows) < self._rows - self._kept
        self._kept += int(keep.sum())
        yield from split(batch, keep, f"beyond the first {self._rows} rows")
