"""Metrics of a node's completions: one row each in metrics/rows.parquet, progress, hit rates, and the cost of
constraints."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from operators.engine.sampling.constraint import Costs
from operators.engine.sequence import Sequence
from operators.generation.requests import batch_row
from pipeline.api.histogram import CacheUse
from pipeline.api.meter import Completed
from pipeline.api.numbers import Number
from pipeline.api.protocols import Runtime
from pipeline.api.runtime import CHUNK

ROWS_SCHEMA = pa.schema(
    [
        pa.field("node", pa.string()),
        pa.field("row", pa.int64()),
        pa.field(CHUNK, pa.int64()),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("completion_tokens", pa.int32()),
        pa.field("queued_s", pa.float64()),
        pa.field("prefill_s", pa.float64()),
        pa.field("decode_s", pa.float64()),
        pa.field("shared_tokens", pa.int32()),
        pa.field("shared_logits", pa.bool_()),
        pa.field("preemptions", pa.int32()),
        pa.field("drafted_tokens", pa.int32()),
        pa.field("accepted_tokens", pa.int32()),
        pa.field("from_store", pa.bool_()),
        pa.field("identical", pa.bool_()),
    ]
)

PREFIX = ("prefix", "prefix cache", "prompt tokens")
LOGITS = ("prompt_logits", "logits of equal prompts", "completions")
"""Name, display name and unit of each cache."""
IDENTICAL = Number("rows that became what an identical one became", "rows")


class RowMetrics:
    """Records the completions of one node.

    Args:
        runtime: of the node.
        constrained: whether to add the cost of constraints to the run's totals.
        drafts: whether to count drafted tokens, and those that were right.
    """

    def __init__(self, runtime: Runtime, *, constrained: bool, drafts: bool = False) -> None:
        self._node = runtime.node
        self._table = runtime.table("rows", ROWS_SCHEMA)
        self._completed = runtime.meter.completed = Completed()
        self._prefixes, self._logits = runtime.cache(*PREFIX), runtime.cache(*LOGITS)
        self._drafts = runtime.cache("drafts", "drafts", "tokens") if drafts else CacheUse()
        about = "Time of completions from the slot to the first token."
        self._first_tokens = runtime.meter.histogram("first_token", about)
        self._costs = Costs()
        if constrained:
            runtime.numbers(self._costs, "structured output")

    def generated(self, rows: Seq[Sequence]) -> None:
        """Record `rows`, which the engine has finished."""
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

    def reused(self, rows: Seq[Sequence], *, from_store: bool = False, identical: bool = False) -> None:
        """Record `rows`, which were completed from a store or from identical rows."""
        self._completed.recalled += len(rows)
        self._add(rows, from_store=from_store, identical=identical)

    def _add(self, rows: Seq[Sequence], *, from_store: bool = False, identical: bool = False) -> None:
        if not rows:
            return
        firsts = [_first_token(row) for row in rows]
        columns: tuple[Seq[object], ...] = (
            [self._node] * len(rows),
            [batch_row(row).row for row in rows],
            [batch_row(row).batch.chunk for row in rows],
            [len(row.prompt) for row in rows],
            [len(row.tokens) for row in rows],
            [row.times.admitted - row.times.queued for row in rows],
            [first - row.times.admitted for row, first in zip(rows, firsts, strict=True)],
            [row.times.finished - first for row, first in zip(rows, firsts, strict=True)],
            [row.placement.shared_tokens for row in rows],
            [row.placement.shared_logits for row in rows],
            [row.placement.preemptions for row in rows],
            [row.drafted for row in rows],
            [row.accepted for row in rows],
            [from_store] * len(rows),
            [identical] * len(rows),
        )
        self._table.extend(columns)


def _first_token(row: Sequence) -> float:
    """Return when the first token of `row` was drawn; when it ended if it has none."""
    return row.times.first_token or row.times.finished


def cost_lines(node: str, directory: Path) -> Iterator[str]:
    """Yield a line on the cost of constraints over all attempts, by the results in `directory`; none if no token was
    constrained."""
    attempts = pq.read_table(directory / "metrics/run.parquet", columns=["totals"])["totals"].to_pylist()
    sums = Counter[str]()
    for totals in attempts:
        sums.update(json.loads(totals))
    tokens = sums[f"{node}/constrained_tokens"]
    if tokens:
        yield (
            f"{node}: structured output: {sums[f'{node}/forced_tokens']:,.0f} of {tokens:,.0f} tokens forced by the"
            f" grammar, {sums[f'{node}/masks']:,.0f} redrawn under a mask,"
            f" {sums[f'{node}/constraint_s'] / tokens * 1e6:,.0f} µs/token"
        )
