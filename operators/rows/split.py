"""Split a batch into the rows that stay and rejects of kind `filtered`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.api.records import Batch, RejectKind, Rejects


def split(batch: Batch, keep: npt.NDArray[np.bool_], reasons: Sequence[str] | str) -> Iterator[Batch | Rejects]:
    """Yield the rows of `batch` for which `keep` is true, and rejects for the others.

    Args:
        keep: bool [rows].
        reasons: one for each reject in their order, or one for all.
    """
    out = np.flatnonzero(~keep)
    if not len(out):
        yield batch
        return
    yield batch.reject(out.tolist(), reasons, RejectKind.FILTERED)
    if len(out) < batch.num_rows:
        yield batch.with_data(batch.data.take(pa.array(np.flatnonzero(keep))))
