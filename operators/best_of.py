"""BestOf: keeps the best completions of each prompt."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.rows.batches import HeldRows, split
from operators.settings.checks import check
from pipeline.api.errors import SchemaError
from pipeline.api.protocols import BaseOperator
from pipeline.api.records import LINEAGE, ROW, Batch, Output, require_column


class BestOf(BaseOperator):
    """Of the samples of a prompt keeps those with the highest value; the others become rejects of kind `filtered`.

    Samples of a prompt are rows that differ in nothing but the last number of their lineage, as `sampling.n` makes
    them. Which are kept is decided when their chunk ends, so it does not depend on the order in which they come. Of
    equal ones the earlier sample is kept.

    Args:
        by: a column of numbers, or of lists of numbers whose mean counts: `logprobs` (with `sampling.logprobs=0`) gives
            the mean log-probability. A value that is null, NaN or an empty list comes last.
        keep: samples of a prompt that are kept.

    Example:
        best:
          inputs: generate
          op:
            _target_: operators.best_of.BestOf
            by: logprobs
            keep: 1
    """

    def __init__(self, by: str = "logprobs", keep: int = 1) -> None:
        check(keep >= 1, "keep", keep, "it is 1 or more")
        self._by = by
        self._keep = keep
        self._held = HeldRows()

    def plan(self, schema: pa.Schema) -> pa.Schema:
        if LINEAGE.name not in schema.names:
            raise SchemaError("there are no samples to choose from; sampling.n=2 or more makes several of each prompt")
        kind = require_column(schema, self._by).type
        number = kind.value_type if pa.types.is_list(kind) else kind
        if not (pa.types.is_floating(number) or pa.types.is_integer(number)):
            raise SchemaError(f"column '{self._by}' has type {kind}; it must be a number or a list of numbers")
        return schema

    def process(self, batch: Batch) -> Iterable[Output]:
        self._held.hold(batch)
        return ()

    def finish(self, chunk: int) -> Iterable[Output]:
        batch = self._held.take(chunk)
        if batch is not None:
            reason = f"not among the best of its samples by {self._by}; keep={self._keep}"
            yield from split(batch, self._best(batch.data), reason)

    def _best(self, data: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return the rows to keep, bool [rows]. `data` is sorted by (row, lineage)."""
        values = [_value(value) for value in data.column(self._by).to_pylist()]
        samples: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        identities = zip(data.column(ROW.name).to_pylist(), data.column(LINEAGE.name).to_pylist(), strict=True)
        for i, (row, lineage) in enumerate(identities):
            samples.setdefault((row, tuple((lineage or ())[:-1])), []).append(i)
        keep = np.zeros(data.num_rows, bool)
        for group in samples.values():
            keep[sorted(group, key=lambda i: -values[i])[: self._keep]] = True
        return keep


def _value(value: Any) -> float:
    """Return the number to rank a row by: the value, or the mean of a list; -inf if there is none."""
    numbers = [n for n in value if n is not None] if isinstance(value, list) else [value]
    if not numbers or numbers[0] is None:
        return -math.inf
    try:
        mean = math.fsum(numbers) / len(numbers)
    except (ValueError, OverflowError):  # inf and -inf together, or a sum too large for a float
        return -math.inf
    return -math.inf if math.isnan(mean) else mean
