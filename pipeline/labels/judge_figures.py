"""Figures of a judge by the labels of some of its rows. Every share is of the run's rows: a label counts for as many as
its stratum has (`design.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import polars as pl

from pipeline.api.intervals import Interval
from pipeline.labels.agreement import cohen_kappa, krippendorff_alpha, reliability
from pipeline.labels.design import Design
from pipeline.labels.joined_labels import JoinedLabels
from pipeline.labels.judged_rows import PROBABILITY, VERDICT
from pipeline.labels.rates import Booleans, Floats, corrected_rate, labels_needed, rate, recall, threshold
from pipeline.run_dir.calibration_file import CalibrationLine

MOST_DECIMALS = 17
FEWEST_KEPT = 10
"""Labelled rows that a threshold has to keep."""


class KeptFrom(NamedTuple):
    """The threshold of a job that keeps rows: the probability `at` which it starts, as text, or why there is none
    (empty: nobody expects one), and its figures."""

    at: str | None
    why_none: str
    lines: Sequence[CalibrationLine] = ()


class JudgeFigures:
    """A judge beside the labels of its rows. `targets`: the values that are told one against the rest. `probability`:
    the column of how likely verdicts are; None: the rows have none."""

    def __init__(
        self,
        judged: pl.LazyFrame,
        joined: JoinedLabels,
        design: Design,
        values: Sequence[str],
        targets: Sequence[str],
        probability: str | None,
    ) -> None:
        self.targets, self.notes = targets, list[str]()
        self._judged, self._joined, self._design, self._values = judged, joined, design, values
        self._probability = probability
        self._sample, self._rows, self.total = design.sample, design.rows, sum(joined.verdicts.values())
        self.unjudged = int(judged.select(pl.col(VERDICT).is_null().sum()).collect(engine="streaming").item())
        if self.unjudged:
            self.notes.append(
                f"{self.unjudged:,} of {self.total + self.unjudged:,} rows have no verdict: all shares are of the"
                f" {self.total:,} that have one, but what a threshold keeps is of all"
            )
        self._said = np.array([row.label for row in design.rows], dtype=object)
        self._verdict = np.array([row.verdict for row in design.rows], dtype=object)
        self._right: Booleans = self._said == self._verdict
        likely = np.array([row.probability for row in design.rows], dtype=np.float64)
        self._sure: Floats | None = likely if probability else None
        if probability and (unsure := int(np.isnan(likely).sum())):
            self.notes.append(
                f"{unsure:,} of {len(likely):,} labelled rows have no {probability}: no threshold keeps such rows, and"
                " accuracy by confidence leaves them out"
            )
        if len(joined.verdicts) == 1:
            (only,) = joined.verdicts
            self.notes.append(
                f"all verdicts are '{only}': the judge tells no rows apart, and its agreement is only how often people"
                f" say '{only}', too"
            )

    def lines(self, width: float) -> list[CalibrationLine]:
        """Return the figures of labels, reviewers, agreement, each target, and confidence. `width`: of the corrected
        rate's interval that labels are counted for."""
        made = [CalibrationLine("labels", "given", rows=self._joined.given)]
        made += [CalibrationLine("labels", name, rows=n) for name, n in self._joined.counts.items()]
        made.append(CalibrationLine("labelled_rows", rows=len(self._rows)))
        made += self._reviewers()
        made.append(self._share("agreement", self._right))
        pairs = [(row.label or "", row.verdict) for row in self._rows]
        made.append(
            CalibrationLine("kappa", estimate=cohen_kappa(pairs, self._sample.weights.tolist()), rows=len(pairs))
        )
        weights = self._sample.weights / self._sample.weights.sum()
        for said in self._values:
            for verdict in self._values:
                here = (self._said == said) & (self._verdict == verdict)
                share, count = float(weights @ here), int(here.sum())
                made.append(CalibrationLine("confusion", said, verdict, estimate=share, rows=count))
        for value in self.targets:
            made += self._one_against_the_rest(value, width)
        return made + self._reliability()

    def _share(self, figure: str, hit: Booleans, among: Booleans | None = None, value: str = "") -> CalibrationLine:
        rows = len(hit) if among is None else int(among.sum())
        return _line(figure, rate(self._sample, hit, among), rows, value)

    def _reviewers(self) -> list[CalibrationLine]:
        """Return how far reviewers agree with each other, over rows that several have labelled."""
        names = self._joined.reviewers
        units = [[row.labels.get(name) for name in names] for row in self._joined.rows]
        shared = [[label for label in unit if label is not None] for unit in units]
        shared = [unit for unit in shared if len(unit) > 1]
        made = [CalibrationLine("reviewers", rows=len(names))]
        if not shared:
            return made
        pairs = [(str(unit[0]), str(unit[1])) for unit in shared]
        value = cohen_kappa(pairs) if len(names) == 2 else krippendorff_alpha(units)
        name = "reviewers_kappa" if len(names) == 2 else "reviewers_alpha"
        made.append(CalibrationLine(name, estimate=value, rows=len(shared)))
        # Of two reviewers each line is who says what; of more the order means nothing.
        both = pairs if len(names) == 2 else [p for unit in shared for p in combinations(sorted(map(str, unit)), 2)]
        counted = sorted(Counter(both).items())
        return made + [CalibrationLine("reviewers_say", a, b, rows=n) for (a, b), n in counted]

    def _one_against_the_rest(self, value: str, width: float) -> list[CalibrationLine]:
        says, judged = self._said == value, self._verdict == value
        made = [
            _line("true_positive_rate", recall(self._sample, says, judged), int(says.sum()), value),
            _line("true_negative_rate", recall(self._sample, ~says, ~judged), int((~says).sum()), value),
            self._share("precision", says, judged, value),
        ]
        raw = self._joined.verdicts.get(value, 0)
        made.append(CalibrationLine("raw_rate", value, estimate=raw / self.total, rows=self.total))
        score, of_all = judged.astype(np.float64), (pl.col(VERDICT) == value).cast(pl.Float64)
        if self._sure is not None and len(self._values) == 2:
            sure, likely = np.where(np.isnan(self._sure), 1.0, self._sure), pl.col(PROBABILITY).fill_null(1.0)
            score = np.where(judged, sure, 1 - sure)  # without a probability the verdict is all there is
            of_all = pl.when(pl.col(VERDICT) == value).then(likely).otherwise(1 - likely)
        means = self._design.mean_score(self._judged, of_all)
        if means is None:  # the strata are of another run: labels alone say it
            score, means = np.zeros(len(says)), np.zeros(len(self._sample.rows))
        corrected = corrected_rate(self._sample, says, score, means)
        made.append(_line("corrected_rate", corrected.interval, corrected.labels, value))
        made.append(CalibrationLine("worth_labels", value, estimate=corrected.worth, rows=corrected.labels))
        more = labels_needed(self._sample, says, corrected, width)
        return [*made, CalibrationLine("labels_needed", value, rows=more)]

    def _reliability(self) -> list[CalibrationLine]:
        if self._sure is None:
            return []
        made = []
        for band in reliability(self._sample, self._right, self._sure):
            name = f"{band.low:.4g} to {band.high:.4g}"
            made.append(_line("accuracy_by_confidence", band.accuracy, band.labels, group=name))
            made.append(CalibrationLine("mean_confidence", "", name, band.mean_score, band.low, band.high, band.labels))
        return made

    def threshold(self, positive: str | None, wanted: float, lacks: str) -> KeptFrom:
        """Return the smallest probability of a positive verdict whose rows reach the precision `wanted`. `lacks`: why
        there is no column of probabilities, if so."""
        if self._sure is None:
            return KeptFrom(None, lacks if positive else "")
        if positive is None:
            return KeptFrom(
                None, f"name the verdict to keep (--positive); there are {', '.join(self._joined.verdicts)}"
            )
        if positive not in self._joined.verdicts:
            return KeptFrom(None, f"no verdict is '{positive}', all are {' or '.join(self._joined.verdicts)}")
        judged, says = (self._verdict == positive) & ~np.isnan(self._sure), self._said == positive
        if not judged.any():
            return KeptFrom(None, f"no labelled row has the verdict '{positive}' and a {self._probability}; label some")
        # Other rows are kept by no threshold: they come last, and none of them is right to keep.
        score = np.where(judged, self._sure, -1.0)
        found = threshold(self._sample, says & judged, score, wanted)
        if found is None:
            reaches = f"no {self._probability} reaches a precision of {wanted:.0%} for '{positive}' by these labels"
            return KeptFrom(None, f"{reaches}: label more rows, ask for less (--precision), or ask another judge")
        at = max(found.at, float(score[judged].min()))
        text, precision = _rounded_down(at, score), rate(self._sample, says, score >= at)
        stays = (pl.col(VERDICT) == positive) & (pl.col(PROBABILITY) >= float(text))
        kept = int(self._judged.filter(stays).select(pl.len()).collect(engine="streaming").item())
        lines = [
            CalibrationLine("threshold", positive, "sure" if found.sure else "estimate", at, rows=int(judged.sum())),
            _line("threshold_precision", precision, int((score >= at).sum()), positive),
            CalibrationLine("threshold_kept", positive, estimate=kept / (self.total + self.unjudged), rows=kept),
        ]
        if (labels := int((score >= at).sum())) >= FEWEST_KEPT:
            return KeptFrom(text, "", lines)
        few = f"only {labels} labelled rows have the verdict '{positive}' and {self._probability} >= {text}, too few to"
        return KeptFrom(
            None, f"{few} go by: label {FEWEST_KEPT - labels} more of them, or ask for less (--precision)", lines
        )


def _line(figure: str, interval: Interval, rows: int, value: str = "", group: str = "") -> CalibrationLine:
    return CalibrationLine(figure, value, group, *interval, rows)


def _rounded_down(at: float, scores: Floats) -> str:
    """Return `at` with as few decimals as keep it above the next smaller score, so that a job keeps the same rows."""
    lower = scores[scores < at]
    floor = float(lower.max()) if len(lower) else -1.0
    for decimals in range(2, MOST_DECIMALS):
        text = f"{np.floor(at * 10**decimals) / 10**decimals:.{decimals}f}"
        if floor < float(text) <= at:
            return text
    return repr(at)
