"""Rates of a whole run from people's labels of a stratified sample of its rows, with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.api.errors import ConfigError
from pipeline.api.intervals import Interval, quantile, wilson
from pipeline.labels.score_interval import interval_of, low_share, plain_labels, reach

Booleans = NDArray[np.bool_]
Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

FEW = 5.0
"""Labels of the rarer kind with which scores get half the weight that the labels ask for: with one or two of them the
weight is that of chance: intervals of 30 labels at a rate of 0.02 covered 81 to 93 %, and now 94 to 96 %."""
LEAST = 2
"""Labels of a stratum without which it is pooled: with a quarter of labels skipped, true positive rates of strata of
one label covered 90 %."""
MOST_THRESHOLDS = 100
"""Scores that `threshold` tests."""


class Corrected(NamedTuple):
    """Share of positive rows in the run, by `corrected_rate`.

    `raw`: the judge's own, the mean score of all rows. `tuned`: the weight of the scores, 0 to 1 (lambda of PPI++; 0:
    they are not used). `labels`: labels it is made of. `worth`: labels of a plain sample with an interval as wide, at
    most the rows of the run. `narrower`: the width of the interval by that of the labels alone.
    """

    interval: Interval
    raw: float
    tuned: float
    labels: int
    worth: float
    narrower: float


class Threshold(NamedTuple):
    """The smallest score `at` which rows are kept, by `threshold`.

    `precision`: share of positive rows among those kept. `kept`: their share of the run's rows. `sure`: the lower limit
    of precision reaches what was wanted; else only its estimate does.
    """

    at: float
    precision: Interval
    kept: float
    sure: bool


@dataclass(frozen=True, eq=False)
class Sampled:
    """The labelled rows of a run, drawn at random in each stratum, one label a row.

    Args:
        stratum: [n] index of the stratum of each labelled row.
        rows: [H] rows of the whole run in each stratum.

    Raises:
        ConfigError: there are no labels, or a stratum has rows but none (see `pooled`), or more labels than rows.
    """

    stratum: Whole
    rows: Whole

    def __post_init__(self) -> None:
        if not len(self.stratum):
            raise ConfigError("there are no labels")
        if bare := np.flatnonzero((self.labels == 0) & (self.rows > 0)).tolist():
            raise ConfigError(f"strata {bare} have rows but no label: label a row of each, or pool them")
        if over := np.flatnonzero(self.labels > self.rows).tolist():
            raise ConfigError(f"strata {over} have more labels than rows: give one label a row")

    @property
    def labels(self) -> Whole:
        """Labelled rows of each stratum [H]."""
        return np.bincount(self.stratum, minlength=len(self.rows))

    @property
    def weights(self) -> Floats:
        """How many rows of the run each labelled row stands for [n]."""
        return (self.rows / np.maximum(self.labels, 1))[self.stratum]

    def means(self, values: Floats | Booleans) -> Floats:
        """Return the mean of `values` [n] in each stratum [H]; 0 in one without rows."""
        return self.sums(values) / np.maximum(self.labels, 1)

    def sums(self, values: Floats | Booleans) -> Floats:
        """Return the sum of `values` [n] in each stratum [H]."""
        return np.bincount(self.stratum, values, len(self.rows)).astype(np.float64)


def pooled(stratum: Whole, rows: Whole, verdict: Whole) -> Whole:
    """Return the stratum into which each goes [H]: one with fewer than LEAST labels, which tell no spread, goes into
    the nearest with the same verdict that has some, unless all its rows have one. Whoever calls it says which.

    Args:
        stratum: [n] index of the stratum of each labelled row.
        rows: [H] rows of the whole run in each stratum.
        verdict: [H] number of the verdict of each; strata beside each other are alike.

    Raises:
        ConfigError: no row with one of the verdicts has a label.
    """
    labels = np.bincount(stratum, minlength=len(rows))
    into = np.arange(len(rows))
    for h in np.flatnonzero((labels < LEAST) & (labels < rows)):
        own, sums = into[h], np.bincount(into, labels, len(rows))
        near = np.flatnonzero((sums > 0) & (verdict == verdict[h]))
        near = near[near != own]
        if not len(near) and not sums[own]:
            raise ConfigError(f"no row of stratum {h}, nor another with its verdict, has a label: label some")
        if len(near) and sums[own] < LEAST:
            into[into == own] = near[np.abs(near - h).argmin()]
    return into


def rate(sample: Sampled, hit: Booleans, among: Booleans | None = None, confidence: float = 0.95) -> Interval:
    """Return the share of `hit` [n] among the rows `among` [n] (all, if None), by the weights of the strata.

    It tells of rows like the run's: labelling all of them still leaves an interval. `estimate` is None if no labelled
    row is `among`.
    """
    within = np.ones_like(hit) if among is None else among
    if not within.any():
        return Interval(None, 0.0, 1.0)
    found, part = sample.sums(within), sample.means(within)
    weight = sample.rows * part / (sample.rows @ part)
    shares = sample.sums(hit & within) / np.maximum(found, 1)
    share, below, above = reach(shares, found, weight, found, confidence)
    # How many rows of each stratum are `among` is a sample, too.
    sizes = (sample.rows / (sample.rows @ part)) ** 2 * part * (1 - part) / np.maximum(sample.labels, 1)
    moved = quantile(confidence) ** 2 * (sizes @ (shares - share) ** 2)
    return interval_of(share, math.hypot(below, math.sqrt(moved)), math.hypot(above, math.sqrt(moved)))


def recall(sample: Sampled, positive: Booleans, verdict: Booleans, confidence: float = 0.95) -> Interval:
    """Return the share of rows with the `verdict` [n] among those that people call `positive` [n]: the true positive
    rate (the true negative rate with both turned round).

    Strata have one verdict each, so all chance is in how many rows of each are positive: a stratum in which no label is
    positive may have some yet, which `rate` would not see. The limits are those of a ratio of two rates (MOVER, Donner
    and Zou 2012). Where verdicts are mixed in a stratum, or all are the same, it is `rate`.
    """
    share_of_verdict, labelled = sample.means(verdict), sample.labels > 0
    if verdict.all() or not verdict.any() or ((share_of_verdict > 0) & (share_of_verdict < 1)).any():
        return rate(sample, verdict, positive, confidence)
    shares, weight, labels = sample.means(positive), sample.rows / sample.rows.sum(), sample.labels.astype(np.float64)
    found = [
        reach(shares[side], labels[side], weight[side], labels[side], confidence)
        for side in (labelled & (share_of_verdict > 0), labelled & (share_of_verdict == 0))
    ]
    (hits, hits_below, hits_above), (missed, missed_below, missed_above) = found
    if not hits + missed:
        return Interval(None, 0.0, 1.0)
    share = hits / (hits + missed)
    low = low_share(hits, hits_below, missed, missed_above)
    return interval_of(share, share - low, 1 - low_share(missed, missed_below, hits, hits_above) - share)


def corrected_rate(
    sample: Sampled, positive: Booleans, score: Floats, mean_score: Floats, confidence: float = 0.95
) -> Corrected:
    """Return the share of positive rows in the run: that of the labels, corrected by the scores of all rows
    (prediction-powered inference, PPI++, Angelopoulos, Duchi and Zrnic 2023, by strata).

    The weight of the scores is tuned for each label on the others, which keeps the rate unbiased. It tells of the run
    itself: if all rows have a label, the interval has no width.

    Args:
        sample: which rows have a label.
        positive: [n] people say so.
        score: [n] the judge's probability that it is so, 0 to 1.
        mean_score: [H] mean score of all rows of each stratum.
        confidence: of the interval.

    Raises:
        ConfigError: a score is no number from 0 to 1.
    """
    rows, labels = sample.rows, sample.labels
    _check(score, "the score of a labelled row")
    _check(mean_score[rows > 0], "the mean score of a stratum")
    weight, left = rows / rows.sum(), 1 - labels / np.maximum(rows, 1)
    label = positive.astype(np.float64)
    off, score_off = (v - sample.means(v)[sample.stratum] for v in (label, score))
    # What each label adds to the variance of the rate, and to the sums of all others when it is left out.
    each = (weight**2 * left / np.maximum(labels * (labels - 1), 1))[sample.stratum]
    out = (labels / np.maximum(labels - 1, 1))[sample.stratum] * each
    both = each @ (off * score_off) - out * off * score_off
    spread = each @ score_off**2 - out * score_off**2
    rarer = np.minimum(label.sum() - label, (1 - label).sum() - (1 - label))
    tuned = np.clip(np.divide(both, spread, np.zeros_like(both), where=spread > 1e-15), 0, 1) * rarer / (rarer + FEW)
    corrected = label - tuned * (score - mean_score[sample.stratum])
    variance, plain = (each @ (v - sample.means(v)[sample.stratum]) ** 2 for v in (corrected, label))
    narrower = math.sqrt(variance / plain) if plain > 0 else 1.0
    share = float(weight @ sample.means(corrected))
    interval = _around(share, sample, positive, labels.astype(np.float64), narrower, confidence)
    worth = min(plain_labels(interval, confidence), float(rows.sum()))
    raw = float(weight @ np.where(rows > 0, mean_score, 0))
    return Corrected(interval, raw, float(tuned.mean()), len(label), worth, narrower)


def threshold(
    sample: Sampled, positive: Booleans, score: Floats, wanted: float, confidence: float = 0.95
) -> Threshold | None:
    """Return the smallest score at which the rows kept have a precision of `wanted` (0 to 1) or more: one whose lower
    limit reaches it, else one whose estimate does, else None.

    Scores are tested from the highest down, and the first that fails ends it (fixed sequence testing): once from the
    fewest labels that could reach it, once from twice as many. Each errs in 2.5 % of samples, so that a threshold which
    is `sure` and has less than the precision wanted comes from at most 5 %, though it was chosen among many.

    Args:
        score: [n] any finite number, the higher the better: rows that are never kept get the lowest.

    Raises:
        ConfigError: a score is no number.
    """
    if not np.isfinite(score).all():
        raise ConfigError("the score of a labelled row is no number: leave it out")
    scores = np.unique(score)[::-1]
    scores = scores[np.unique(np.linspace(0, len(scores) - 1, MOST_THRESHOLDS).round().astype(int))]
    weights = sample.weights

    def at(least: float, sure: bool) -> Threshold:
        kept = score >= least
        precision = rate(sample, positive, kept, confidence)
        return Threshold(float(least), precision, float(weights @ kept / weights.sum()), sure)

    labels = [int((score >= least).sum()) for least in scores]
    fewest = next((n for n in labels if wilson(n, n, confidence).low >= wanted), len(score) + 1)
    found: Threshold | None = None
    for start in (fewest, 2 * fewest):
        for least in (least for least, n in zip(scores, labels, strict=True) if n >= start):
            tested = at(least, True)
            if tested.precision.low < wanted:
                break
            found = tested if found is None or tested.at < found.at else found
    reached = [s for s in scores if weights @ (positive & (score >= s)) >= wanted * (weights @ (score >= s))]
    return found or (at(min(reached), False) if reached else None)


def labels_needed(sample: Sampled, positive: Booleans, found: Corrected, width: float, confidence: float = 0.95) -> int:
    """Return how many more labels, spread over the strata as those of now, make the interval of `corrected_rate` at
    most `width` (high - low) wide, at most as many as rows have none. `found`: that rate by the labels of now.

    Raises:
        ConfigError: `width` is not above 0.
    """
    if not width > 0:
        raise ConfigError(f"the width of an interval is above 0, not {width}")
    share, now = found.interval.estimate or 0.0, len(positive)

    def wide(labels: int) -> bool:
        interval = _around(share, sample, positive, _spread(sample, labels), found.narrower, confidence)
        return interval.high - interval.low > width

    low, high = now, int(sample.rows.sum())
    if not wide(now):
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if wide(middle) else (low, middle)
    return high - now


def _spread(sample: Sampled, labels: int) -> Floats:
    """Return so many labels, in each stratum [H] as many times those of now, or all its rows."""
    spread = (sample.labels * (labels / len(sample.stratum))).astype(np.float64)
    full = np.zeros(len(sample.rows), np.bool_)
    while (spread[~full] > sample.rows[~full]).any():
        full |= spread >= sample.rows
        spread[full] = sample.rows[full]
        spread[~full] = sample.labels[~full] * (labels - spread[full].sum()) / max(1, sample.labels[~full].sum())
    return spread


def _around(
    share: float, sample: Sampled, positive: Booleans, labels: Floats, narrower: float, confidence: float
) -> Interval:
    """Return the interval of the corrected rate `share` with so many `labels` in each stratum [H]."""
    rows = sample.rows
    left = 1 - labels / np.maximum(rows, 1)
    size = np.divide(labels, left, np.full(len(rows), np.inf), where=left > 0)
    _, below, above = reach(sample.means(positive), labels, rows / rows.sum(), size, confidence)
    return interval_of(share, narrower * below, narrower * above)


def _check(scores: Floats, what: str) -> None:
    if not ((scores >= 0) & (scores <= 1)).all():
        raise ConfigError(f"{what} is no number from 0 to 1: leave rows without one out, of the labels and of the run")
