"""Several completions of a prompt: a row becomes as many, told apart by the number at the end of their lineage."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from operators.settings.sampling_rules import MOST_SAMPLES
from pipeline.api.records import LINEAGE, Batch, Rejects

SAMPLES = "n"
"""Column that says how many for its row, where `sampling.per_row` names it."""


class Samples:
    """Makes rows of rows.

    Args:
        n: rows for each row.
        per_row: whether the column SAMPLES says how many; null stands for `n`.
    """

    def __init__(self, n: int, *, per_row: bool) -> None:
        self._n = n
        self.each = None if per_row else n
        """Rows for each row, None if they say it themselves."""
        self._per_row = per_row
        self.expand = per_row or n > 1
        """Whether there is anything to do."""

    def schema(self, before: pa.Schema) -> pa.Schema:
        """The schema of the rows that are made: `lineage` comes last."""
        if not self.expand:
            return before
        return pa.schema([field for field in before if field.name != LINEAGE.name]).append(LINEAGE)

    def refused(self, batch: Batch) -> Iterator[Rejects]:
        """The rows of which there cannot be as many as they ask for."""
        if self._per_row:
            asked = batch.data.column(SAMPLES).to_pylist()
            wrong = {i: n for i, n in enumerate(asked) if not _can_be(n)}
            if wrong:
                reasons = [
                    f"column '{SAMPLES}' has {n!r}; allowed: a whole number, 1 to {MOST_SAMPLES}"
                    for n in wrong.values()
                ]
                yield batch.reject(list(wrong), reasons)

    def of(self, batch: Batch) -> tuple[Batch, int]:
        """The rows that are not refused, each as often as it asks for, next to each other; and how many they were."""
        if not self.expand:
            return batch, batch.num_rows
        asked = batch.data.column(SAMPLES).to_pylist() if self._per_row else [None] * batch.num_rows
        counts = np.array([(self._n if n is None else int(n)) if _can_be(n) else 0 for n in asked], np.int64)
        index = np.repeat(np.arange(len(counts)), counts)
        numbers = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
        data = batch.data.take(pa.array(index, pa.int64()))
        if LINEAGE.name in data.schema.names:
            before = data.column(LINEAGE.name).to_pylist()
            data = data.drop_columns([LINEAGE.name])
        else:
            before = [None] * len(index)
        lineage = [[*(old or ()), int(number)] for old, number in zip(before, numbers, strict=True)]
        return batch.with_data(data.append_column(LINEAGE, pa.array(lineage, LINEAGE.type))), int((counts > 0).sum())


def _can_be(n: object) -> bool:
    return n is None or (isinstance(n, int | float) and 1 <= n <= MOST_SAMPLES and n == int(n))
