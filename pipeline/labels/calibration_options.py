"""What `calibrate` is asked: columns, the positive verdict, what the threshold has to reach."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from pipeline.api.errors import ConfigError, did_you_mean
from pipeline.run_dir.names import DATA

POSITIVE = ("yes", "true", "1", "correct")
"""Verdicts that say that a row is good, if the user names none."""


@dataclass(frozen=True)
class CalibrationOptions:
    """What to calibrate.

    Args:
        verdict: column of the judge's verdicts.
        probability: column of how likely the judge finds its verdict, 0 to 1; null takes VERDICT_probability if rows
            have it.
        positive: the verdict that is told one against the rest; null takes one of POSITIVE if it is there, else tells
            each.
        precision: share of positive rows that the threshold has to reach.
        width: of the interval that labels are counted for.
        swapped: column of the verdict asked with two answers in the other order.
        positions: the two verdicts that name the place of an answer, first and second; empty: none does; null: guessed.
        text: column of the text that is judged, whose length is told.
        folder: data or data/NAME.
    """

    verdict: str
    probability: str | None = None
    positive: str | None = None
    precision: float = 0.95
    width: float = 0.1
    swapped: str | None = None
    positions: Sequence[str] | None = None
    text: str | None = None
    folder: str = DATA

    def __post_init__(self) -> None:
        for name, value in (("precision", self.precision), ("width", self.width)):
            if not 0 < value < 1:
                raise ConfigError(f"--{name} {value}: it is a share, above 0 and below 1, as 0.95")
        if self.positions and len(self.positions) != 2:
            raise ConfigError(f"--positions {','.join(self.positions)}: give the two verdicts that name places, as A,B")


def positive_of(wanted: str | None, values: Sequence[str]) -> str | None:
    """Return the verdict that is told one against the rest: `wanted`, else one of POSITIVE, else None. Raises
    ConfigError if `wanted` is none of `values`."""
    if wanted is not None and wanted not in values:
        hint = did_you_mean(wanted, values) or f"; there are {', '.join(values)}"
        raise ConfigError(f"--positive: neither a verdict nor a label is '{wanted}'{hint}")
    return wanted or next((value for value in POSITIVE if value in values), None)


def keep_line(verdict: str, positive: str, kind: pl.DataType, probability: str, at: str) -> str:
    """Return the line for a job that keeps positive rows from a probability on."""
    named = [name if re.fullmatch(r"[A-Za-z_]\w*", name) else f'"{name}"' for name in (verdict, probability)]
    quoted = "'" + positive.replace("'", "''") + "'"
    value = positive if kind == pl.Boolean or kind.is_numeric() else quoted
    return f"keep: {named[0]} = {value} AND {named[1]} >= {at}"
