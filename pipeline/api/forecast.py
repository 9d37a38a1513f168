"""Estimates for a dry run: ranges, and the forecast of a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.api.records import Batch, Rejects


@dataclass(frozen=True, slots=True)
class Range:
    """An estimated number: its likely value and its 90 % interval. `high` may be infinite."""

    low: float
    likely: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Range:
        """Return the range of a known number."""
        return cls(value, value, value)

    @property
    def is_exact(self) -> bool:
        """True if low and high are equal."""
        return self.low == self.high

    def __add__(self, other: Range) -> Range:
        """Add end by end: the two errors are taken to be fully correlated."""
        return Range(self.low + other.low, self.likely + other.likely, self.high + other.high)

    def times(self, factor: Range | float) -> Range:
        """Multiply by `factor`, which is 0 or more, end by end."""
        other = factor if isinstance(factor, Range) else Range.exact(factor)
        high = self.high * other.high if self.high and other.high else 0.0  # also where the other one is infinite
        return Range(self.low * other.low, self.likely * other.likely, high)

    def bounded(self, other: Range) -> Range:
        """Return the maximum of both ranges, end by end."""
        return Range(max(self.low, other.low), max(self.likely, other.likely), max(self.high, other.high))


NOTHING = Range.exact(0.0)


@dataclass(frozen=True)
class Task:
    """The work that a node is asked to forecast.

    Args:
        rows: rows that it will receive in the run.
        whole: True if the sample holds all of them.
        seconds: approximate time that it may compute; a single long call may exceed it.
        results: output directory of the run; read only.
    """

    rows: Range
    whole: bool
    seconds: float
    results: Path


@dataclass(frozen=True)
class Forecast:
    """Forecast of a node with a model, for all its rows.

    Args:
        rows_out: rows that it passes on.
        output: sample rows that it passes on, for the nodes downstream.
        rejects: sample rows that it rejects.
        tokens_in, tokens_out: of all rows; tokens_in leaves out tokens from the prefix cache or the completion store.
        seconds: compute time of the model for all rows; None if the time limit was too short to measure it.
        prepare_s: seconds to load the model and create contexts.
        encode_s: seconds of the model's encoder for images, which `seconds` has.
        read_s: seconds in which other threads read images for it.
        memory: bytes in the run that the dry run did not need.
        disk_bytes: bytes written in addition to the sinks' files.
        prompts: the first prompts as the model gets them, each with its number of tokens.
        notes: remarks for the user, one sentence each.
    """

    rows_out: Range
    output: Sequence[Batch] = ()
    rejects: Sequence[Rejects] = ()
    tokens_in: Range = NOTHING
    tokens_out: Range = NOTHING
    seconds: Range | None = NOTHING
    prepare_s: float = 0.0
    encode_s: float = 0.0
    read_s: Range = NOTHING
    memory: Range = NOTHING
    disk_bytes: Range = NOTHING
    prompts: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = ()


def share(part: float, whole: float) -> float:
    """Return part / whole, or 1.0 if whole is 0."""
    return part / whole if whole else 1.0
