"""Score intervals of weighted sums of shares, one of each stratum.

A sum is inside the interval if the shares that are likeliest with it would give what was labelled within z standard
errors (Miettinen and Nurminen 1985). For one stratum that is Wilson's interval. Unlike the estimate +- z standard
errors it has a width where no label is a hit (those covered 43 to 90 % at a rate of 0.02), and of what was simulated
it came nearest to 95 %: 94 to 97 % at 30 and 100 labels in two strata. Ten strata of three labels cover 93 to 98 %. A
rate of 0.02 of 30 labels with unequal weights, or of the six that are positive, has two or three outcomes, so that no
interval covers 95 %: these cover 89 to 98 %.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pipeline.api.intervals import Interval, quantile

Floats = NDArray[np.float64]

PRIOR = 1.0
"""Labels like the average of the sample that are added to those of each stratum where its variance is computed: three
labels a stratum have too little of their own. With one stratum they change nothing."""


def interval_of(share: float, below: float, above: float) -> Interval:
    """Return the interval that reaches so far `below` and `above` a share; all of it is held between 0 and 1."""
    share = min(1.0, max(0.0, share))
    return Interval(share, max(0.0, min(share, share - below)), min(1.0, max(share, share + above)))


def reach(
    shares: Floats, labels: Floats, weight: Floats, size: Floats, confidence: float
) -> tuple[float, float, float]:
    """Return the sum of weight * shares over the strata [H], and how far its interval reaches below and above.

    Args:
        labels: of each stratum; strata without any do not count.
        size: labels of a plain sample with the variance of each stratum; infinite if all its rows have one.
    """
    there = (labels > 0) & (weight > 0)
    shares, labels, weight, size = shares[there], labels[there], weight[there], size[there]
    share, z = float(weight @ shares), quantile(confidence)
    smooth = (shares * labels + PRIOR * share / weight.sum()) / (labels + PRIOR)
    return share, _shift(1 - smooth, weight, size, z), _shift(smooth, weight, size, z)


def _shift(shares: Floats, weight: Floats, size: Floats, z: float) -> float:
    """Return how much the sum of weight * shares may be larger: the likeliest shares with a given sum are the roots p
    of size * (p - share) = k * weight * p * (1 - p), and k is such that the sum is z standard errors away."""

    def moved(k: float) -> float:
        t = k * weight / size
        root = np.sqrt((1 - t) ** 2 + 4 * t * shares)
        likeliest = np.where(
            t < 1, 2 * shares / np.maximum(1 - t + root, 1e-300), (t - 1 + root) / np.maximum(2 * t, 1)
        )
        return float(weight @ (likeliest - shares))

    variance = weight**2 / size
    if not variance @ (1 - shares) > 0:
        return 0.0
    low = high = z / math.sqrt(variance.sum() / 4)
    while high * moved(high) < z**2:
        low, high = high, 2 * high
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * moved(middle) < z**2 else (low, middle)
    return moved(high)


def low_share(part: float, below: float, other: float, above: float) -> float:
    """Return the lower limit of part / (part + other), of which the limits are part - below and other + above."""
    least = max(0.0, part**2 - below**2)
    down = part * other + math.sqrt(other**2 * below**2 + above**2 * least)
    return least / (least + down) if least else 0.0


def plain_labels(interval: Interval, confidence: float) -> float:
    """Return with how many rows Wilson's interval is as wide: its equation is quadratic in z squared / rows."""
    share, width = interval.estimate or 0.0, interval.high - interval.low
    if not 0 < width < 1:
        return 0.0 if width else math.inf
    linear = 4 * share * (1 - share) - 2 * width**2
    return quantile(confidence) ** 2 * (linear + math.sqrt(linear**2 + 4 * (1 - width**2) * width**2)) / (2 * width**2)
