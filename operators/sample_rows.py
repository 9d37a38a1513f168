"""Sample: keeps a random sample of the rows, independent of their order."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.rows.batches import HeldRows, split
from operators.rows.lineage import hash_of, row_hashes
from operators.settings.checks import check
from pipeline.api import ROW, Batch, ConfigError, Operator, Output, require_column


class Sample(Operator):
    """Keeps a share of the rows, or some of each chunk; the others become rejects of kind `filtered`.

    Every row has a number that follows from `seed`, `row` and `lineage` alone. The rows with the smallest numbers are
    kept: the same ones in whatever order they arrive, and with a larger `fraction` the same ones and more.

    Args:
        fraction: the share that is kept, above 0 and up to 1; of 1,000 rows about 100 for 0.1.
        per_chunk: instead, how many rows of each chunk (`chunk_rows` source rows) are kept: exactly that many where
            there are enough. They are held back until the chunk ends.
        seed: of the choice. `${seed}` takes that of the job.

    Raises:
        ConfigError: not one of `fraction` and `per_chunk` is given, or it is out of its range.

    Example:
        tenth:
          inputs: read
          op:
            _target_: operators.sample_rows.Sample
            fraction: 0.1
            seed: ${seed}
    """

    def __init__(self, fraction: float | None = None, per_chunk: int | None = None, seed: int = 0) -> None:
        if (fraction is None) == (per_chunk is None):
            raise ConfigError("give fraction (a share of the rows) or per_chunk (so many of each chunk)")
        if fraction is not None:
            check(0 < fraction <= 1, "fraction", fraction, "it is a share: above 0 and up to 1")
        if per_chunk is not None:
            check(per_chunk >= 1, "per_chunk", per_chunk, "it is 1 or more")
        self._fraction = fraction
        self._per_chunk = per_chunk
        self._base = hash_of(f"sample|{seed}")
        self._held = HeldRows()

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, ROW.name, [ROW.type])
        return schema

    def process(self, batch: Batch) -> Iterable[Output]:
        if self._fraction is None:
            self._held.hold(batch)
            return
        keep = self._numbers(batch) * 2.0**-64 < self._fraction
        yield from split(batch, keep, f"not in the sample of fraction={self._fraction}")

    def finish(self, chunk: int) -> Iterable[Output]:
        batch = self._held.take(chunk)
        if batch is None or self._per_chunk is None:
            return
        keep = np.zeros(batch.num_rows, bool)
        keep[np.argsort(self._numbers(batch), kind="stable")[: self._per_chunk]] = True
        yield from split(batch, keep, f"not in the sample of per_chunk={self._per_chunk}")

    def _numbers(self, batch: Batch) -> npt.NDArray[np.uint64]:
        return row_hashes(batch.data, np.asarray(batch.data.column(ROW.name)).astype(np.uint64), self._base)
