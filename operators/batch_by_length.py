"""BatchByLength: sends rows of similar prompt length together, so that prefill calls are full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.rows.token_lists import PROMPT_IDS
from operators.settings.runtime import EngineSettings
from pipeline.api import ROW, Batch, ChunkEnd, Inbox, Item, Operator, Scope, require_column
from pipeline.api.load import load_of

MIN_BATCH_ROWS = 64


class BatchByLength(Operator):
    """Sorts rows by prompt length inside a window of `lookahead_rows`, longest first, and hands them on in batches.

    A window is sent off when it is full, when no more rows are waiting (nothing downstream waits for a fuller one) and
    at a chunk's end. Rows of an earlier chunk go first; a batch holds rows of one chunk. Order decides nothing about
    the text of a row. A row with many bytes (images) counts as several.

    Args:
        runtime: lookahead_rows and slots are read.

    Example:
        batch:
          inputs: tokenize
          op:
            _target_: operators.batch_by_length.BatchByLength
            runtime: ${runtime}
    """

    scope = Scope.ROW

    def __init__(self, runtime: EngineSettings) -> None:
        self._lookahead_rows = runtime.lookahead_rows
        self._batch_rows = max(runtime.slots, MIN_BATCH_ROWS)
        self._window: list[Batch] = []

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, PROMPT_IDS.name, [PROMPT_IDS.type])
        return schema

    def run(self, inbox: Inbox) -> Iterator[Item]:
        while True:
            item = inbox.poll()
            if isinstance(item, Batch):
                yield from self._add(item)
                continue
            yield from self._flush()
            if isinstance(item, ChunkEnd):
                yield item
            elif inbox.exhausted:
                return
            else:
                inbox.wait()

    def _add(self, batch: Batch) -> Iterator[Batch]:
        left = batch.data
        while left.num_rows:
            room = self._lookahead_rows - sum(b.num_rows for b in self._window)
            self._window.append(batch.with_data(left.slice(0, room)))
            if left.num_rows >= room or sum(map(load_of, self._window)) >= self._lookahead_rows:
                yield from self._flush()
            left = left.slice(room)

    def _flush(self) -> Iterator[Batch]:
        window, self._window = self._window, []
        for chunk in sorted({b.chunk for b in window}):
            parts = [b.data for b in window if b.chunk == chunk]
            rows = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
            ordered = rows.take(pa.array(self._order(rows)))
            for start in range(0, ordered.num_rows, self._batch_rows):
                yield Batch(chunk, ordered.slice(start, self._batch_rows))

    def _order(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        return np.lexsort((rows.column(ROW.name).to_numpy(), -list_lengths(rows.column(PROMPT_IDS.name))))


def prompt_lengths(batches: Iterable[pa.RecordBatch]) -> list[int]:
    """Return the number of tokens of each prompt."""
    return [n for data in batches for n in list_lengths(data.column(PROMPT_IDS.name)).tolist()]


def list_lengths(column: pa.ListArray) -> npt.NDArray[np.int32]:
    """Return the length of each list, int32 [rows]; 0 for null. Reads the offsets without a copy, also of a slice."""
    lengths: npt.NDArray[np.int32] = np.diff(column.offsets.to_numpy())
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return lengths
