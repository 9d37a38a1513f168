"""Agreement of reviewers with each other and with the judge, beyond what chance gives and by the judge's confidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.api.errors import ConfigError
from pipeline.api.intervals import Interval
from pipeline.labels.rates import Booleans, Floats, Sampled, rate

Level = Literal["nominal", "ordinal", "interval"]
SMALLEST_BAND = 10
"""Labels of a band of the reliability curve, at least."""


class Band(NamedTuple):
    """Point of the reliability curve: the labelled rows with scores from `low` to `high`, both included, their mean
    score and their accuracy (weighted as the run's rows)."""

    low: float
    high: float
    labels: int
    mean_score: float
    accuracy: Interval


def cohen_kappa(pairs: Sequence[tuple[str, str]], weights: Sequence[float] | None = None) -> float | None:
    """Return Cohen's kappa of two raters (Cohen 1960): 1 is full agreement, 0 what chance gives.

    Args:
        pairs: of each row the labels of both.
        weights: of each row how many rows of the run it stands for.

    Returns:
        None where it is undefined: without rows, or if both give all rows the same label.
    """
    if not pairs:
        return None
    _, flat = np.unique(np.array(pairs, dtype=object).astype(str), return_inverse=True)
    index = flat.reshape(len(pairs), 2)
    table = np.zeros((flat.max() + 1,) * 2)
    np.add.at(table, (index[:, 0], index[:, 1]), 1.0 if weights is None else np.asarray(weights, dtype=np.float64))
    total = table.sum()
    if not total > 0:
        return None
    observed, expected = np.trace(table) / total, (table.sum(0) @ table.sum(1)) / total**2
    return None if 1 - expected < 1e-15 else float((observed - expected) / (1 - expected))


def krippendorff_alpha(units: Sequence[Sequence[str | None]], level: Level = "nominal") -> float | None:
    """Return Krippendorff's alpha of any number of reviewers (Krippendorff 2011): 1 is full agreement, 0 what chance
    gives.

    Args:
        units: of each row the labels of its reviewers in any order, None where one gave none. Rows with fewer than two
            labels do not count.
        level: what labels differ by: `nominal` equal or not, `ordinal` ranks, `interval` distances.

    Returns:
        None where it is undefined: without a row with two labels, or if all of them are the same.

    Raises:
        ConfigError: a label is no number and `level` is not `nominal`.
    """
    labels = [[label for label in unit if label is not None] for unit in units]
    labels = [unit for unit in labels if len(unit) > 1]
    if level == "nominal":
        values, flat = np.unique(np.array([label for unit in labels for label in unit], dtype=str), return_inverse=True)
        numbers = np.zeros(len(values))
    else:
        numbers, flat = np.unique([_number(label, level) for unit in labels for label in unit], return_inverse=True)
    if len(numbers) < 2:
        return None
    counts = np.zeros((len(labels), len(numbers)))  # of each row, how often it has each value
    np.add.at(counts, (np.repeat(np.arange(len(labels)), [len(unit) for unit in labels]), flat), 1.0)
    spread = counts / (counts.sum(1, keepdims=True) - 1)
    coincidences = counts.T @ spread - np.diag(spread.sum(0))
    totals = counts.sum(0)
    distances = _distances(numbers, totals, level)
    expected = totals @ distances @ totals / (totals.sum() - 1)
    return float(1 - (coincidences * distances).sum() / expected)


def _distances(numbers: NDArray[np.float64], totals: NDArray[np.float64], level: Level) -> NDArray[np.float64]:
    """Return how far each value is from each, squared [values, values]."""
    if level == "nominal":
        return 1.0 - np.eye(len(numbers))
    places = numbers if level == "interval" else np.cumsum(totals) - totals / 2
    return np.subtract.outer(places, places) ** 2


def _number(label: str, level: Level) -> float:
    try:
        number = float(label)
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise ConfigError(f"label {label!r} is no number, so it has no place in {level} agreement; use `nominal`")
    return number


def reliability(sample: Sampled, right: Booleans, sure: Floats, bands: int = 10) -> list[Band]:
    """Return the accuracy of the verdicts by the judge's confidence `sure` [n], in at most `bands` bands with about as
    many labels each, some `SMALLEST_BAND` or more; equal scores are in one band, and rows without one (NaN) in none.

    Raises:
        ConfigError: a confidence is not from 0 to 1.
    """
    known = np.sort(sure[~np.isnan(sure)])
    if not ((known >= 0) & (known <= 1)).all():
        raise ConfigError("the confidence of a labelled row is no number from 0 to 1: leave it out")
    count = max(1, min(bands, len(known) // SMALLEST_BAND))
    starts = np.unique(known[[len(known) * i // count for i in range(count)]]) if len(known) else known
    made = []
    of_band = np.where(np.isnan(sure), 0, np.searchsorted(starts, sure, side="right"))
    for inside in (of_band == i + 1 for i in range(len(starts))):
        mean = float(np.average(sure[inside], weights=sample.weights[inside]))
        ends = float(sure[inside].min()), float(sure[inside].max())
        made.append(Band(*ends, int(inside.sum()), mean, rate(sample, right, inside)))
    return made
