"""Histogram: durations by size in fixed buckets; CacheUse: lookups in a cache and how many were hits."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BOUNDS_S = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2),
    *(0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, math.inf),
)
"""Upper bounds of the buckets in seconds; a bucket includes its bound."""


class Histogram:
    """Counts and sums of durations by bucket. One thread adds; any thread may read."""

    __slots__ = ("_counts", "_sums")

    def __init__(self) -> None:
        self._counts = [0] * len(BOUNDS_S)
        self._sums = [0.0] * len(BOUNDS_S)

    def add(self, seconds: float, times: int = 1) -> None:
        """Add the duration `seconds`, `times` over. Costs less than a microsecond."""
        place = bisect_left(BOUNDS_S, seconds)
        self._counts[place] += times
        self._sums[place] += times * seconds

    @classmethod
    def summed(cls, each: Iterable[Mapping[float, tuple[int, float]]]) -> Histogram:
        """Return the sum of histograms, each given by its `buckets`."""
        made = cls()
        for buckets in each:
            for bound, (count, total_s) in buckets.items():
                place = bisect_left(BOUNDS_S, bound)
                made._counts[place] += count
                made._sums[place] += total_s
        return made

    def buckets(self) -> dict[float, tuple[int, float]]:
        """Return count and sum in seconds of each bucket that is not empty, by its upper bound, ascending."""
        each = zip(BOUNDS_S, self._counts, self._sums, strict=True)
        return {bound: (count, total_s) for bound, count, total_s in each if count}


@dataclass(slots=True)
class CacheUse:
    """Lookups in a cache, in tokens or rows: `hits` of `queries` were there. One thread writes; any thread may read."""

    queries: int = 0
    hits: int = 0
