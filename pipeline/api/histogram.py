"""Histogram: durations by size in fixed buckets; CacheUse: lookups in a cache and how many were hits."""

from __future__ import annotations

import math
from bisect import bisect_left
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

    def read(self) -> dict[str, dict[str, float]]:
        """Return `buckets` and `sums_s`: count and sum of each bucket that is not empty, by its upper bound as text,
        ascending."""
        counts, sums_s = list(self._counts), list(self._sums)
        filled = [(str(bound), i) for i, bound in enumerate(BOUNDS_S) if counts[i]]
        return {"buckets": {b: counts[i] for b, i in filled}, "sums_s": {b: sums_s[i] for b, i in filled}}


@dataclass(slots=True)
class CacheUse:
    """Lookups in a cache, in tokens or rows: `hits` of `queries` were there. One thread writes; any thread may read."""

    queries: int = 0
    hits: int = 0
