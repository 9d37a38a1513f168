"""How long completions become, judged by some that were begun: most of these are cut off before they end by themselves.

A completion that was cut off after t tokens says that it is longer than t, and no more. The mean of those that ended
would be too short, since long ones are cut off more often. The Kaplan-Meier estimator (Kaplan and Meier 1958) gives the
share that goes on beyond each length, from those that were still watched at it. Beyond the longest that was watched
nothing is known but `most`: there completions are taken to end at a constant rate, that of the tokens in the later half
of what was watched. How much that may be wrong is told by weighing the completions at random (the Bayesian bootstrap,
Rubin 1981), the rate by its gamma distribution, and what few ends there are by the error of a count.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
REPLICATES = 300
_UNSEEN_ENDS = 0.5
"""Ends that are taken to have been where none was seen, and added where the rate is drawn (Jeffreys' prior)."""
_CHANGE = 0.5
"""How much the rate may change further on: the standard deviation of its logarithm."""


class Lengths:
    """The lengths of completions.

    Args:
        seen: tokens of each that was begun.
        ended: whether it ended with them by itself.
        most: tokens at which all are cut.
    """

    def __init__(self, seen: Seq[int], ended: Seq[bool], most: int) -> None:
        self._most = max(most, 1)
        self._seen = np.minimum(np.asarray(seen, np.int64), self._most)
        self._ended = np.asarray(ended, bool)
        self._last = int(self._seen.max(initial=0))

    def mean(self, weights: Floats | None = None, rate: float | None = None) -> float:
        """Tokens of a completion on average.

        Args:
            weights: of each completion that was begun; None: all alike.
            rate: ends a token beyond the longest; None: the likeliest.
        """
        beyond = self._beyond(weights)
        rest = self._most - self._last
        rate = self._rate_of(*self._late()) if rate is None else rate
        tail = rest if rate * rest < 1e-9 else (1 - np.exp(-rate * rest)) / rate
        return float(beyond[:-1].sum() + beyond[-1] * tail)

    def replicates(self, random: np.random.Generator) -> Floats:
        """What the mean may be as well: float64 [REPLICATES]."""
        count = len(self._seen)
        if not count:
            return random.uniform(1.0, self._most, REPLICATES)
        weights = random.dirichlet(np.ones(count), REPLICATES) * count
        ends, exposed = self._late()
        rates = random.gamma(ends + _UNSEEN_ENDS, 1 / max(exposed, 1.0), REPLICATES)
        rates *= random.lognormal(0.0, _CHANGE, REPLICATES)
        means = np.array([self.mean(w, r) for w, r in zip(weights, rates, strict=True)])
        known = self._ended | (self._seen >= self._most)
        if not self._ended.any() and known.all():
            return means  # all are as long as they may be
        # Few stand for all there are, however they are weighed: of n that were counted the square root may be chance.
        chance = random.lognormal(0.0, 1 / np.sqrt(np.count_nonzero(known) + 1), REPLICATES)
        return np.clip(means * chance, 1.0, self._most)

    def draw(self, count: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
        """So many lengths, as they come."""
        if not len(self._seen):
            return np.full(count, max(1, self._most // 2), np.int64)
        beyond = self._beyond(None)
        places = random.random(count)
        # The first length that fewer than so many go beyond; `last` where more do.
        lengths = np.searchsorted(-beyond, -places, side="right")
        over = lengths >= len(beyond)
        rate = max(self._rate_of(*self._late()), 1e-9)
        tails = self._last + np.ceil(random.exponential(1 / rate, count)).astype(np.int64)
        return np.minimum(np.where(over, tails, lengths), self._most).astype(np.int64)

    def _beyond(self, weights: Floats | None) -> Floats:
        """The share of completions that have more than 0, 1, 2 ... tokens, up to the longest that was watched."""
        weights = np.ones(len(self._seen), np.float64) if weights is None else weights
        watched = np.bincount(self._seen, weights, self._last + 1).astype(np.float64)[::-1].cumsum()[::-1]
        ends = np.bincount(self._seen[self._ended], weights[self._ended], self._last + 1).astype(np.float64)
        stays = 1 - np.divide(ends, watched, out=np.zeros_like(ends), where=watched > 0)
        beyond: Floats = np.cumprod(stays)
        return beyond

    def _late(self) -> tuple[float, float]:
        """Ends in the later half of what was watched, and tokens that were watched there."""
        middle = self._last // 2
        ends = int(np.count_nonzero(self._ended & (self._seen > middle)))
        return float(ends), float(np.maximum(self._seen - middle, 0).sum())

    def _rate_of(self, ends: float, exposed: float) -> float:
        return max(ends, _UNSEEN_ENDS) / max(exposed, 1.0)
