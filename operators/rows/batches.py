"""Hold rows until their chunk ends, and take rejects out of batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.api import Batch, Operator, Output, RejectKind, Rejects
from pipeline.system.atomic_files import sorted_by_identity


class HeldRows:
    """The rows of open chunks, `max_open_chunks` at most, for operators that depend on the order of rows."""

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


class WholeChunks(Operator):
    """Base of operators that decide about the rows of a chunk together, when it ends."""

    def __init__(self) -> None:
        self._held = HeldRows()

    def process(self, batch: Batch) -> Iterable[Output]:
        self._held.hold(batch)
        return ()

    def finish(self, chunk: int) -> Iterable[Output]:
        batch = self._held.take(chunk)
        return () if batch is None else self.decide(batch)

    @abstractmethod
    def decide(self, batch: Batch) -> Iterable[Output]:
        """Return the output for all rows of a chunk, in the order of (row, lineage), of one at least."""


def set_apart(
    batch: Batch, reasons: Mapping[int, str], kind: RejectKind = RejectKind.ERROR
) -> tuple[list[Rejects], Batch]:
    """Return the rejects of the rows that have a reason, by index, and the batch of the other rows."""
    if not reasons:
        return [], batch
    others = pa.array([i for i in range(batch.num_rows) if i not in reasons], pa.int64())
    return [batch.reject([*reasons], [*reasons.values()], kind)], batch.with_data(batch.data.take(others))


def split(batch: Batch, keep: npt.NDArray[np.bool_], reasons: Sequence[str] | str | None) -> Iterator[Batch | Rejects]:
    """Yield the rows of `batch` for which `keep` (bool [rows]) is true, and rejects of kind `filtered` for the others.

    `reasons`: one for each reject in their order, or one for all; None to drop the others without rejects, as rows
    that were merged into those that are kept (of which there is one at least).
    """
    out = np.flatnonzero(~keep)
    if not len(out):
        yield batch
        return
    if reasons is not None:
        yield batch.reject(out.tolist(), reasons, RejectKind.FILTERED)
    if len(out) < batch.num_rows:
        kept = batch.data.take(pa.array(np.flatnonzero(keep)))
        yield batch.with_data(kept, expanded=0 if reasons is not None else -len(out))
