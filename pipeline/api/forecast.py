"""Estimates of a run before it runs: ranges of numbers, a sample of the input, and the forecast of a node."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.api.records import Batch, Rejects


@dataclass(frozen=True, slots=True)
class Range:
    """A number that is not known exactly: its likely value, and the bounds that hold in nine cases of ten.

    `high` is infinite where nothing bounds it.
    """

    low: float
    likely: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Range:
        """Return the range of a number that is known."""
        return cls(value, value, value)

    @property
    def is_exact(self) -> bool:
        """True if the number is known."""
        return self.low == self.high

    def __add__(self, other: Range) -> Range:
        """Add two ranges that err together: the ends add up."""
        return Range(self.low + other.low, self.likely + other.likely, self.high + other.high)

    def times(self, factor: float) -> Range:
        """Multiply all three by `factor`, 0 or more."""
        if not factor:
            return Range.exact(0.0)
        return Range(self.low * factor, self.likely * factor, self.high * factor)

    def bounded(self, other: Range) -> Range:
        """Return the larger of two, end by end."""
        return Range(max(self.low, other.low), max(self.likely, other.likely), max(self.high, other.high))


NOTHING = Range.exact(0.0)


@dataclass(frozen=True)
class Sample:
    """Rows of the input that stand for all.

    Args:
        batches: the rows, all of chunk 0, with their true `row`.
        rejects: those among them that could not be read.
        rows: source rows that the run has to do, bad ones included.
        how: where the rows were taken from, in words.
    """

    batches: Sequence[Batch]
    rejects: Sequence[Rejects]
    rows: Range
    how: str

    @property
    def taken(self) -> int:
        """Rows that were looked at, bad ones included."""
        return sum(b.num_rows for b in self.batches) + sum(r.num_rows for r in self.rejects)


@dataclass(frozen=True)
class Task:
    """The question that a node is asked for a forecast.

    Args:
        rows: rows that it will be given in the run.
        whole: whether the rows that it is shown are all of them.
        seconds: how long it may compute to find out. A first call that takes longer bounds the rest.
        results: the output directory of the run. It may be read, and nothing may be written there.
    """

    rows: Range
    whole: bool
    seconds: float
    results: Path


@dataclass(frozen=True)
class Forecast:
    """The answer of a node with a model, for all its rows.

    Args:
        rows_out: rows that it passes on.
        output: some of them, for the nodes behind it.
        rejects: those of the rows it was shown that it refuses.
        tokens_in, tokens_out: of all rows; what another run or row has computed is not in tokens_in.
        seconds: of the device, for all rows; None where there was no time to find out.
        prepare_s: seconds to load the model and make contexts.
        disk_bytes: what it writes beside the sinks' files.
        memory: bytes by what they are for.
        prompts: the first prompts as the model is given them, and how many tokens each has.
        notes: what the user should know, a sentence each.
    """

    rows_out: Range
    output: Sequence[Batch] = ()
    rejects: Sequence[Rejects] = ()
    tokens_in: Range = NOTHING
    tokens_out: Range = NOTHING
    seconds: Range | None = NOTHING
    prepare_s: float = 0.0
    disk_bytes: Range = NOTHING
    memory: Mapping[str, float] = field(default_factory=dict)
    prompts: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = ()


def share(part: float, whole: float) -> float:
    """Return part / whole, or 1.0 if whole is 0."""
    return part / whole if whole else 1.0


def is_unbounded(value: Range) -> bool:
    """Return whether `value` has no upper bound."""
    return math.isinf(value.high)
