"""Biases of a judge: what it goes by beside the answer (their order, chance, their length). Over all rows of a run;
queries aggregate while they read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from pipeline.api.errors import ConfigError, did_you_mean
from pipeline.api.intervals import Interval, quantile, wilson
from pipeline.api.records import LINEAGE, ROW
from pipeline.labels.design import Design
from pipeline.labels.judged_rows import LENGTH, VERDICT, verdict_text
from pipeline.labels.rates import rate
from pipeline.run_dir.calibration_file import CalibrationLine

PLACES = (("A", "B"), ("1", "2"), ("first", "second"))
"""Verdicts that name the place of an answer."""
CONFIDENCE = 0.95


class JudgeBias:
    """Order effects, self-agreement and length bias of a column of verdicts.

    Args:
        judged: rows as `judged_rows` returns them.
        verdict: their column of verdicts.
        swapped: column of the verdict in the other order, or None.
        positions: the verdicts that name the first and the second place; empty: none does; None: guessed.
        text: column of the text that is judged, or None.
    """

    def __init__(
        self, judged: pl.LazyFrame, verdict: str, swapped: str | None, positions: Sequence[str] | None, text: str | None
    ) -> None:
        self.notes: list[str] = []
        self._rows = judged.filter(pl.col(VERDICT).is_not_null())
        self._verdict, self._swapped, self._positions, self._text = verdict, swapped, positions, text

    def lines(self) -> list[CalibrationLine]:
        """Return the figures of order and of self-agreement, as far as the columns are there."""
        return [*self._order(), *self._votes(), *self._prompts()]

    def _order(self) -> Iterator[CalibrationLine]:
        """Yield how often the verdicts in both orders agree, and which place is favoured where they do not."""
        if self._swapped is None:
            return
        other = verdict_text(self._rows, self._swapped).alias("swapped")
        pairs = self._rows.select(VERDICT, other).drop_nulls().group_by(VERDICT, "swapped").len()
        counts = {(a, b): n for a, b, n in pairs.sort(VERDICT, "swapped").collect(engine="streaming").iter_rows()}
        places = self._places({value for pair in counts for value in pair})
        turned = dict(zip(places, reversed(places), strict=True))
        rows = sum(counts.values())
        agree = sum(n for (a, b), n in counts.items() if a == turned.get(b, b))
        yield _line("order_agreement", wilson(agree, rows), rows)
        for (a, b), n in counts.items():
            yield CalibrationLine("order_verdicts", a, b, rows=n)
        if places:
            first, second = (counts.get((place, place), 0) for place in places)
            yield _line("order_favours_first", wilson(first, first + second), first + second, group=places[0])

    def _places(self, values: set[str]) -> tuple[str, ...]:
        if self._positions is not None:
            if unknown := next((value for value in self._positions if value not in values), None):
                there = ", ".join(sorted(values))
                raise ConfigError(
                    f"--positions: no verdict is '{unknown}'{did_you_mean(unknown, values) or f'; there are {there}'}"
                )
            return tuple(self._positions)
        found = next((pair for pair in PLACES if set(pair) <= values and len(values) <= len(pair) + 1), ())
        if found:
            a, b = found
            self.notes.append(f"'{a}' and '{b}' name the place of an answer; --positions none, if they do not")
        else:
            self.notes.append(
                "verdicts in both orders are taken as names of answers, not of their places; --positions FIRST,SECOND"
                " if they name places"
            )
        return found

    def _votes(self) -> Iterator[CalibrationLine]:
        """Yield the share of samples that said what most did, of `pick: majority`."""
        votes, samples = f"{self._verdict}_votes", f"{self._verdict}_samples"
        if {votes, samples} <= set(self._rows.collect_schema().names()):
            each = self._rows.filter(pl.col(samples) > 1).select(share=pl.col(votes) / pl.col(samples))
            yield from _mean(each, "samples that say what most say")

    def _prompts(self) -> Iterator[CalibrationLine]:
        """Yield the share of pairs of rows of one prompt with the same verdict: rows that are equal but in the last
        number of their lineage."""
        if not {ROW.name, LINEAGE.name} <= set(self._rows.collect_schema().names()):
            return
        lineage = pl.col(LINEAGE.name)
        prompt = lineage.list.head((lineage.list.len().cast(pl.Int64) - 1).clip(0)).cast(pl.List(pl.String))
        keyed = self._rows.select(ROW.name, VERDICT, prompt=prompt.list.join(".").fill_null(""))
        counts = keyed.group_by(ROW.name, "prompt", VERDICT).agg(n=pl.len().cast(pl.Float64))
        sums = counts.group_by(ROW.name, "prompt").agg(
            rows=pl.col("n").sum(), same=(pl.col("n") * (pl.col("n") - 1)).sum()
        )
        share = pl.col("same") / (pl.col("rows") * (pl.col("rows") - 1))
        yield from _mean(sums.filter(pl.col("rows") > 1).select(share=share), "pairs of rows of one prompt")

    def by_length(self, targets: Sequence[str], design: Design | None = None) -> Iterator[CalibrationLine]:
        """Yield the share of each target by thirds of length: of all verdicts and, with a `design` of labelled rows
        that have a length, of their labels and their verdicts."""
        if self._text is None:
            return
        length = pl.col(self._text).cast(pl.String).str.len_chars().alias(LENGTH)
        rows = self._rows.select(VERDICT, length).drop_nulls().collect(engine="streaming")  # no text stays in memory
        if rows.is_empty():
            return
        low, high = (rows[LENGTH].quantile(i / 3, "lower") or 0.0 for i in (1, 2))
        names = list(dict.fromkeys((f"up to {low:,.0f}", f"up to {high:,.0f}", f"above {high:,.0f}")))
        third = (pl.col(LENGTH) > low).cast(pl.Int8) + (pl.col(LENGTH) > high).cast(pl.Int8)
        counted = rows.group_by(third.alias("third"), VERDICT).len()
        of = {(int(t), v): n for t, v, n in counted.iter_rows()}
        sums = [sum(n for (t, _), n in of.items() if t == third) for third in range(3)]
        for value in targets:
            for i, name in _thirds(names, low, high):
                yield _line("length_verdicts", wilson(of.get((i, value), 0), sums[i]), sums[i], value, name)
                if design is not None:
                    yield from _labelled(design, value, name, i, (low, high))


def _thirds(names: Sequence[str], low: float, high: float) -> list[tuple[int, str]]:
    """Return number and name of each third that can have rows."""
    return list(zip((0, 2), names, strict=True)) if low == high else list(enumerate(names))


def _labelled(
    design: Design, value: str, name: str, third: int, limits: tuple[float, float]
) -> Iterator[CalibrationLine]:
    lengths = np.array([math.nan if row.length is None else row.length for row in design.rows])
    inside = np.isfinite(lengths) & ((lengths > limits[0]).astype(int) + (lengths > limits[1]) == third)
    for figure, said in (
        ("length_labels", [row.label for row in design.rows]),
        ("length_labelled_verdicts", [row.verdict for row in design.rows]),
    ):
        hit = np.array([text == value for text in said])
        yield _line(figure, rate(design.sample, hit, inside), int(inside.sum()), value, name)


def _mean(rows: pl.LazyFrame, of: str) -> Iterator[CalibrationLine]:
    """Yield the mean of the column `share` with its normal interval."""
    share = pl.col("share")
    mean, spread, n = rows.select(share.mean(), share.std().alias("s"), share.count().alias("n")).collect().row(0)
    if n:
        half = quantile(CONFIDENCE) * (spread or 0.0) / math.sqrt(n)
        yield _line("self_agreement", Interval(mean, max(0.0, mean - half), min(1.0, mean + half)), n, group=of)


def _line(figure: str, interval: Interval, rows: int, value: str = "", group: str = "") -> CalibrationLine:
    return CalibrationLine(figure, value, group, *interval, rows)
