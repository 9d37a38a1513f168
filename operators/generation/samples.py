"""Several completions per prompt: copies of a row, numbered at the end of their lineage."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from operators.rows.lineage import append_to_lineage, repeated
from operators.settings import SamplingSettings
from operators.settings.sampling import MOST_SAMPLES
from pipeline.api.records import LINEAGE, Batch

SAMPLES = "n"
"""Column with the number of completions of its row, if `sampling.per_row` names it."""


class Samples:
    """Repeats each row as often as `sampling.n`, or a column of that name, says."""

    def __init__(self, sampling: SamplingSettings) -> None:
        self._n = sampling.n
        self._per_row = SAMPLES in sampling.per_row
        self.each = None if self._per_row else sampling.n
        """Rows for each row; None if they say it themselves."""
        self._expands = self._per_row or sampling.n > 1

    def schema(self, before: pa.Schema) -> pa.Schema:
        """Return the schema of the repeated rows: `lineage` comes last."""
        if not self._expands:
            return before
        return pa.schema([field for field in before if field.name != LINEAGE.name]).append(LINEAGE)

    def of(self, batch: Batch) -> tuple[Batch, dict[int, str]]:
        """Return the repeated rows of `batch`, copies of a row adjacent; and by index the reason for each row with an
        invalid number."""
        if not self._expands:
            return batch, {}
        asked = batch.data.column(SAMPLES).to_pylist() if self._per_row else [None] * batch.num_rows
        refused = {
            i: f"column '{SAMPLES}' has {n!r}; allowed: a whole number, 1 to {MOST_SAMPLES}"
            for i, n in enumerate(asked)
            if not _can_be(n)
        }
        counts = [0 if i in refused else self._n if n is None else int(n) for i, n in enumerate(asked)]
        parents, numbers = repeated(np.array(counts, np.int64))
        data = batch.data.take(pa.array(parents))
        before = data.column(LINEAGE.name) if LINEAGE.name in data.schema.names else None
        if before is not None:
            data = data.drop_columns([LINEAGE.name])
        return batch.with_data(data.append_column(LINEAGE, append_to_lineage(before, numbers))), refused


def _can_be(n: object) -> bool:
    return n is None or (isinstance(n, int | float) and 1 <= n <= MOST_SAMPLES and n == int(n))
