"""Metrics of a node's completions: one row each in metrics/rows.parquet, progress, hit rates, and the cost of
constraints."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Generic

import pyarrow as pa
import pyarrow.parquet as pq

from operators.engine.sampling.constraint import Costs
from operators.engine.sequence import Sequence
from operators.generation.requests import R, batch_row
from pipeline.api.meter import CacheUse, Completed
from pipeline.api.numbers import Number
from pipeline.api.protocols import Runtime
from pipeline.api.runtime import CHUNK

ROWS_SCHEMA = pa.schema(
    [
        ("node", pa.string()),
        *((name, pa.int64()) for name in ("row", CHUNK)),
        *((name, pa.int32()) for name in ("prompt_tokens", "completion_tokens")),
        *((name, pa.float64()) for name in ("queued_s", "prefill_s", "decode_s")),
        *(("shared_tokens", pa.int32()), ("shared_logits", pa.bool_())),
        *((name, pa.int32()) for name in ("preemptions", "drafted_tokens", "accepted_tokens")),
        *((name, pa.bool_()) for name in ("from_store", "identical")),
    ]
)

PREFIX = ("prefix", "prefix cache", "prompt tokens")
LOGITS = ("prompt_logits", "logits of equal prompts", "completions")
"""Name, display name and unit of each cache."""
IDENTICAL = Number("rows that became what an identical one became", "rows")


class RowMetrics(ABC, Generic[R]):
    """Records the rows of one node, of which the values differ between engines and servers. `runtime`: of the node."""

    def __init__(self, runtime: Runtime) -> None:
        self._node = runtime.node
        self._table = runtime.table("rows", ROWS_SCHEMA)
        self._completed = runtime.meter.completed = Completed()

    @abstractmethod
    def generated(self, rows: Seq[R]) -> None:
        """Record `rows`, which were made or have failed now."""

    @abstractmethod
    def _values(self, row: R) -> tuple[object, ...]:
        """Return the values of a row in ROWS_SCHEMA, from `prompt_tokens` to `accepted_tokens`."""

    def reused(self, rows: Seq[R], *, from_store: bool = False, identical: bool = False) -> None:
        """Record `rows`, which were completed from a store or from identical rows."""
        self._completed.recalled += len(rows)
        self._add(rows, from_store=from_store, identical=identical)

    def _add(self, rows: Seq[R], *, from_store: bool = False, identical: bool = False) -> None:
        lines = [(row, batch_row(row)) for row in rows]
        if lines:
            values = [
                (self._node, place.row, row.chunk, *self._values(row), from_store, identical) for row, place in lines
            ]
            self._table.extend(list(zip(*values, strict=True)))


class CompletionMetrics(RowMetrics[Sequence]):
    """Records the completions of an engine.

    Args:
        runtime: of the node.
        constrained: whether to add the cost of constraints to the run's totals.
        drafts: whether to count drafted tokens, and those that were right.
    """

    def __init__(self, runtime: Runtime, *, constrained: bool, drafts: bool = False) -> None:
        super().__init__(runtime)
        self._prefixes, self._logits = runtime.cache(*PREFIX), runtime.cache(*LOGITS)
        self._drafts = runtime.cache("drafts", "drafts", "tokens") if drafts else CacheUse()
        about = "Time of completions from the slot to the first token."
        self._first_tokens = runtime.meter.histogram("first_token", about)
        self._costs = Costs()
        if constrained:
            runtime.numbers(self._costs, "structured output")

    def generated(self, rows: Seq[Sequence]) -> None:
        for row in rows:
            self._costs.add(row.sampling.costs)
            self._first_tokens.add(_first_token(row) - row.times.admitted)
        self._prefixes.queries += sum(len(row.prompt) for row in rows)
        self._prefixes.hits += sum(row.placement.shared_tokens for row in rows)
        self._logits.queries += len(rows)
        self._logits.hits += sum(row.placement.shared_logits for row in rows)
        self._drafts.queries += sum(row.drafted for row in rows)
        self._drafts.hits += sum(row.accepted for row in rows)
        self._completed.rows += len(rows)
        self._completed.tokens += sum(len(row.tokens) for row in rows)
        self._add(rows)

    def _values(self, row: Sequence) -> tuple[object, ...]:
        times, place, first = row.times, row.placement, _first_token(row)
        return (
            *(len(row.prompt), len(row.tokens)),
            *(times.admitted - times.queued, first - times.admitted, times.finished - first),
            *(place.shared_tokens, place.shared_logits, place.preemptions, row.drafted, row.accepted),
        )


def _first_token(row: Sequence) -> float:
    """Return when the first token of `row` was drawn; when it ended if it has none."""
    return row.times.first_token or row.times.finished


def summed_totals(directory: Path) -> Counter[str]:
    """Return the totals of a run in `directory`, summed over its attempts."""
    sums = Counter[str]()
    for totals in pq.read_table(directory / "metrics/run.parquet", columns=["totals"])["totals"].to_pylist():
        sums.update(json.loads(totals))
    return sums


def cost_lines(node: str, directory: Path) -> Iterator[str]:
    """Yield a line on the cost of constraints over all attempts, by the results in `directory`; none if no token was
    constrained."""
    sums = summed_totals(directory)
    tokens = sums[f"{node}/constrained_tokens"]
    if tokens:
        yield (
            f"{node}: structured output: {sums[f'{node}/forced_tokens']:,.0f} of {tokens:,.0f} tokens forced by the"
            f" grammar, {sums[f'{node}/masks']:,.0f} redrawn under a mask,"
            f" {sums[f'{node}/constraint_s'] / tokens * 1e6:,.0f} µs/token"
        )
