"""Options of `calibrate`: columns, the positive verdict, what the threshold has to reach."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from pipeline.api.errors import ConfigError, did_you_mean
from pipeline.run_dir.names import DATA

PAIRS = (("yes", "no"), ("true", "false"), ("1", "0"), ("correct", "incorrect"))
"""Verdicts that say that a row is good, and that it is not, whatever their case."""


@dataclass(frozen=True)
class CalibrationOptions:
    """What to calibrate.

    Args:
        verdict: column of the judge's verdicts.
        probability: column of how likely the judge finds its verdict, 0 to 1; null takes VERDICT_probability if rows
            have it.
        positive: the verdict that is told one against the rest; null takes the good one if all
            verdicts are of one of PAIRS, else tells each.
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


def positive_of(wanted: str | None, verdicts: Sequence[str], others: Sequence[str] = ()) -> tuple[str | None, bool]:
    """Return the verdict that is told one against the rest, and whether it says that a row is good: `wanted`, else the
    good one of PAIRS. A 1 among other numbers is a rating. `others`: labels that no verdict has.

    Raises:
        ConfigError: `wanted` is none of them.
    """
    values = [*verdicts, *others]
    if wanted is not None and wanted not in values:
        hint = did_you_mean(wanted, values) or f"; there are {', '.join(values)}"
        raise ConfigError(f"--positive: neither a verdict nor a label is '{wanted}'{hint}")
    pair = next((pair for pair in PAIRS if verdicts and {_plain(value) for value in verdicts} <= {*pair}), None)
    good = [value for value in values if pair and _plain(value) == pair[0]]
    guessed = good[0] if good else None
    return wanted or guessed, bool(good) and (wanted or guessed) in good


def _plain(value: str) -> str:
    return value.strip().lower().removesuffix(".0")


def keep_condition(verdict: str, positive: str, kind: pl.DataType, probability: str, at: str) -> str:
    """Return the condition (`keep` of a step) of positive rows from a probability on."""
    named = [name if re.fullmatch(r"[A-Za-z_]\w*", name) else f'"{name}"' for name in (verdict, probability)]
    quoted = "'" + positive.replace("'", "''") + "'"
    value = positive if kind == pl.Boolean or kind.is_numeric() else quoted
    return f"{named[0]} = {value} AND {named[1]} >= {at}"
