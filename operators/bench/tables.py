"""Tables of the benchmark's report: medians with their spread, ratios within repeats, Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

Row = dict[str, Any]
"""One measurement, by column."""


def spread(values: Sequence[float], form: str = ",.1f") -> str:
    """`median (lowest-highest)`, or the value alone where there is one; `-` for none."""
    if not values:
        return "-"
    middle = f"{statistics.median(values):{form}}"
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}}-{max(values):{form}})"


def paired_ratio(rows: Sequence[Row], one: str, other: str) -> float | None:
    """tokens_per_s of `one` by that of `other`: the median over the repeats that have both; None if there is none."""
    speeds = {(row["contender"], row["repeat"]): row["tokens_per_s"] for row in rows if row["tokens_per_s"]}
    repeats = {repeat for _, repeat in speeds}
    ratios = [speeds[one, r] / speeds[other, r] for r in repeats if (one, r) in speeds and (other, r) in speeds]
    return statistics.median(ratios) if ratios else None


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a Markdown table."""
    yield f"| {' | '.join(titles)} |"
    yield f"|---|{'---:|' * (len(titles) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
