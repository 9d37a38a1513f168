"""BestOf and Majority: keep the best completions of each prompt, or the one that most of them agree with."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.rows.batches import WholeChunks, split
from operators.rows.lineage import require_samples, samples
from operators.settings.checks import check, check_one_of
from pipeline.api.errors import SchemaError
from pipeline.api.records import Batch, Output, RejectKind, add_columns, python_values, require_column

LOSERS = ("reject", "drop")
"""What becomes of the samples that are not kept (argument `losers`)."""


class BestOf(WholeChunks):
    """Of the samples of a prompt keeps those with the highest value. The others become rejects of kind `filtered`, or
    leave without a trace.

    Samples of a prompt are rows that differ in nothing but the last number of their lineage, as `sampling.n` makes
    them. Which are kept is decided when their chunk ends, so it does not depend on the order in which they come. Of
    equal ones the earlier sample is kept.

    Args:
        by: a column of numbers, or of lists of numbers whose mean counts: `logprobs` (with `sampling.logprobs=0`) gives
            the mean log-probability. A value that is null, NaN or an empty list comes last.
        keep: samples of a prompt that are kept.
        losers: what becomes of the others: reject, or drop (they are in no file, and count as merged into those that
            are kept).

    Example:
        best:
          inputs: generate
          op:
            _target_: operators.best_of.BestOf
            by: logprobs
            keep: 1
    """

    def __init__(self, by: str = "logprobs", keep: int = 1, losers: str = "reject") -> None:
        check(keep >= 1, "keep", keep, "it is 1 or more")
        super().__init__()
        check_one_of("losers", losers, LOSERS)
        self._by = by
        self._keep = keep
        self._drop = losers == "drop"

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_samples(schema, "choose from")
        kind = require_column(schema, self._by).type
        number = kind.value_type if pa.types.is_list(kind) else kind
        if not (pa.types.is_floating(number) or pa.types.is_integer(number)):
            raise SchemaError(f"column '{self._by}' has type {kind}; it must be a number or a list of numbers")
        return schema

    def decide(self, batch: Batch) -> Iterable[Output]:
        reason = f"not among the best of its samples by {self._by}; keep={self._keep}"
        return split(batch, self._best(batch.data), None if self._drop else reason)

    def _best(self, data: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return the rows to keep, bool [rows]. `data` is sorted by (row, lineage)."""
        values = [_value(value) for value in data.column(self._by).to_pylist()]
        keep = np.zeros(data.num_rows, bool)
        for group in samples(data).values():
            keep[sorted(group, key=lambda i: -values[i])[: self._keep]] = True
        return keep


class Majority(WholeChunks):
    """Of the samples of a prompt keeps the first one of the most frequent value: self-consistency (Wang et al. 2022).

    Each sample is a vote for its value in `column`; a null is none. Of values with as many votes the one that came
    first wins. The vote is held when the chunk ends, so it does not depend on the order in which the samples come. Adds
    `votes` (int32), how many samples have the value, and `samples` (int32), how many there are, those without a vote
    among them. The samples of a prompt without a single vote become rejects of kind `filtered`.

    Args:
        column: the values that are counted, of any type; they are compared as they are, so bring texts into one form
            before (Map, ParseJson).
        as_: prefix of the new columns (`as` in a job file): `as: answer` gives `answer_votes` and `answer_samples`.
        losers: what becomes of the other samples: reject, or drop (they are in no file, and count as merged into the
            one that is kept).

    Example:
        vote:
          inputs: answer
          op:
            _target_: operators.best_of.Majority
            column: answer
            losers: drop
    """

    def __init__(self, column: str, as_: str | None = None, losers: str = "reject") -> None:
        super().__init__()
        check_one_of("losers", losers, LOSERS)
        self._column = column
        self._prefix = f"{as_}_" if as_ else ""
        self._drop = losers == "drop"

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_samples(schema, "count")
        require_column(schema, self._column)
        counts = (pa.field(f"{self._prefix}{name}", pa.int32()) for name in ("votes", "samples"))
        self._schema = add_columns(schema, *counts)
        return self._schema

    def decide(self, batch: Batch) -> Iterable[Output]:
        values = [
            None if v is None else json.dumps(v, default=repr) for v in python_values(batch.data.column(self._column))
        ]
        counts = np.zeros((2, batch.num_rows), np.int32)
        keep = np.zeros(batch.num_rows, bool)
        for group in samples(batch.data).values():
            votes = Counter(values[i] for i in group if values[i] is not None)
            if votes:
                ((value, most),) = votes.most_common(1)  # the first of those with as many
                counts[:, group] = [[most], [len(group)]]
                keep[next(i for i in group if values[i] == value)] = True
        voted = counts[0] > 0
        if not voted.all():
            reason = f"none of its samples has a value in {self._column}"
            yield batch.reject(np.flatnonzero(~voted).tolist(), reason, RejectKind.FILTERED)
        if voted.any():
            data = pa.record_batch([*batch.data.columns, *counts], schema=self._schema).filter(pa.array(voted))
            reason = f"not the first with the most frequent value of {self._column} among its samples"
            yield from split(batch.with_data(data), keep[voted], None if self._drop else reason)


def _value(value: Any) -> float:
    """Return the number to rank a row by: the value, or the mean of a list; -inf if there is none."""
    if isinstance(value, int):
        return value  # a double may be another number
    numbers = [n for n in value if n is not None] if isinstance(value, list) else [value]
    if not numbers or numbers[0] is None:
        return -math.inf
    try:
        mean = math.fsum(numbers) / len(numbers)
    except (ValueError, OverflowError):  # inf and -inf together, or a sum too large for a float
        return -math.inf
    return -math.inf if math.isnan(mean) else mean
