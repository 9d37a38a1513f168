"""The table of `make faults`: what was done to runs, how often, and what was seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

HEAD = ("fault", "cases", "passed", "what was seen")


class Case:
    """What a test says of itself. `fault`: the line that it counts for."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.seen: Counter[str] = Counter()
        self.most: dict[str, float] = {}

    def saw(self, **counts: int) -> None:
        """Add to the line's numbers, for example kills=1, rows_lost=0."""
        self.seen.update(counts)

    def had_at_most(self, **values: float) -> None:
        """Show the largest over all cases, for example of the tokens that one kill cost."""
        keep_largest(self.most, values)


@dataclass
class Line:
    """A line of the table. `seen`: what was counted, added up over its cases. `most`: the largest values."""

    cases: int = 0
    passed: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    most: dict[str, float] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)

    def ran(self, case: Case, *, passed: bool) -> None:
        """Take in a test that ran."""
        self.cases += 1
        self.passed += passed
        self.seen.update(case.seen)
        keep_largest(self.most, case.most)

    def __str__(self) -> str:
        counts = [f"{name.replace('_', ' ')} {n:,}" for name, n in self.seen.items()]
        most = [f"{name.replace('_', ' ')} at most {value:,.0f}" for name, value in self.most.items()]
        skips = [f"{n} skipped: {why}" for why, n in self.skipped.items()]
        return "; ".join([", ".join([*counts, *most]), *skips] if counts or most else skips) or "-"


def keep_largest(kept: dict[str, float], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        kept[name] = max(value, kept.get(name, value))


def as_text(table: dict[str, Line]) -> list[str]:
    """The lines of the table, its head first."""
    rows = [HEAD, *((fault, str(line.cases), str(line.passed), str(line)) for fault, line in table.items())]
    fault, cases, passed, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [f"{a:{fault}}  {b:>{cases}}  {c:>{passed}}  {d}" for a, b, c, d in rows]
