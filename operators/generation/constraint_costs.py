"""What the constraints of a node have cost, in the run's totals and in words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from operators.engine.sampling.constraint import Costs


def totals_of(node: str, costs: Costs) -> dict[str, float]:
    """`costs` as totals of the run."""
    return {
        f"{node}/constraint_s": costs.seconds,
        f"{node}/constrained_tokens": float(costs.tokens),
        f"{node}/forced_tokens": float(costs.forced),
        f"{node}/masks": float(costs.masks),
    }


def cost_lines(node: str, directory: Path) -> Iterator[str]:
    """A line on it over all attempts, from the results in `directory`; none where no token was constrained."""
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
