"""BestOf: of several completions of a prompt the best."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from operators.settings.checks import check
from pipeline.api.errors import SchemaError
from pipeline.api.protocols import BaseOperator
from pipeline.api.records import LINEAGE, ROW, Batch, Output, RejectKind, require_column


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
        self._held: dict[int, list[pa.RecordBatch]] = {}

    def plan(self, schema: pa.Schema) -> pa.Schema:
        """Leaves the columns as they are.

        Raises:
            SchemaError: there is no lineage, or the column does not exist or holds no numbers.
        """
        if LINEAGE.name not in schema.names:
            raise SchemaError("there are no samples to choose from; sampling.n=2 or more makes several of each prompt")
        kind = require_column(schema, self._by).type
        number = kind.value_type if pa.types.is_list(kind) else kind
        if not (pa.types.is_floating(number) or pa.types.is_integer(number)):
            raise SchemaError(f"column '{self._by}' has type {kind}; it must be a number or a list of numbers")
        self._schema = schema
        return schema

    def process(self, batch: Batch) -> Iterable[Output]:
        """Keep the rows until their chunk ends."""
        self._held.setdefault(batch.chunk, []).append(batch.data)
        return ()

    def finish(self, chunk: int) -> Iterable[Output]:
        """Choose."""
        held = self._held.pop(chunk, [])
        if not held:
            return
        batch = Batch(chunk, pa.concat_batches(held))
        kept, dropped = self._chosen(batch.data)
        if dropped:
            reason = f"not among the best of its samples by {self._by}; keep={self._keep}"
            yield batch.reject(dropped, reason, RejectKind.FILTERED)
        yield batch.with_data(batch.data.take(pa.array(kept, pa.int64())))

    def _chosen(self, data: pa.RecordBatch) -> tuple[list[int], list[int]]:
        """Which rows stay and which do not, both in the order of (row, lineage)."""
        identities = _identities(data)
        values = [_value(value) for value in data.column(self._by).to_pylist()]
        samples: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for i in sorted(range(len(identities)), key=identities.__getitem__):
            row, lineage = identities[i]
            samples.setdefault((row, lineage[:-1]), []).append(i)
        kept: list[int] = []
        dropped: list[int] = []
        for group in samples.values():
            best = set(sorted(group, key=lambda i: -values[i])[: self._keep])
            kept += [i for i in group if i in best]
            dropped += [i for i in group if i not in best]
        return kept, dropped


def _identities(data: pa.RecordBatch) -> list[tuple[int, tuple[int, ...]]]:
    lineages = data.column(LINEAGE.name).to_pylist()
    rows = data.column(ROW.name).to_pylist()
    return [(row, tuple(lineage or ())) for row, lineage in zip(rows, lineages, strict=True)]


def _value(value: Any) -> float:
    """What a row is ranked by; -inf for nothing."""
    numbers = [n for n in value if n is not None] if isinstance(value, list) else [value]
    if not numbers or numbers[0] is None:
        return -math.inf
    try:
        mean = math.fsum(numbers) / len(numbers)
    except (ValueError, OverflowError):  # inf and -inf together, or beyond what a float holds
        return -math.inf
    return -math.inf if math.isnan(mean) else mean
