"""Hold rows until their chunk ends, for operators that depend on the order of rows."""

from __future__ import annotations

import pyarrow as pa

from pipeline.api.records import Batch
from pipeline.system.atomic_files import sorted_by_identity


class HeldRows:
    """The rows of chunks that have not ended: at most `max_open_chunks` chunks at a time."""

    def __init__(self) -> None:
        self._open: dict[int, list[pa.RecordBatch]] = {}

    def hold(self, batch: Batch) -> None:
        self._open.setdefault(batch.chunk, []).append(batch.data)

    def take(self, chunk: int) -> Batch | None:
        """Remove and return all rows of `chunk`, in the order of (row, lineage); None if there are none."""
        held = self._open.pop(chunk, [])
        if not any(data.num_rows for data in held):
            return None
        (data,) = sorted_by_identity(pa.Table.from_batches(held)).combine_chunks().to_batches()
        return Batch(chunk, data)
