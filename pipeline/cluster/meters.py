"""Meters of nodes that run in workers, as the driver shows and records them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from pipeline.api.histogram import CacheUse, Histogram
from pipeline.api.meter import CLOCKS, Completed, MeterReading, StageClock, StageMeter, StageState

_SUMMED = ("batches", "tokens_in", "tokens_out")
"""Counts that workers keep; rows are counted by the driver."""


class RemoteMeter(StageMeter):
    """The meter of a node, or of a part of one, that several workers run. The driver counts rows, by answers, so each
    once; everything else is the sum over all workers, those that have ended included."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.clock = self._sums = SummedClock()
        self._readings: dict[str, MeterReading] = {}
        self._each: dict[str, dict[str, float]] = {}

    def update(self, worker: str, reading: MeterReading) -> None:
        """Take the latest reading of `worker`; it counts from the next `add_up` on."""
        self._readings[worker] = reading
        rows = {key: 0 for key in reading.counts if key not in _SUMMED}
        own = {key: reading.counts[key] for key in (*_SUMMED, "queue_rows")}
        self._each[worker] = {**rows, **own, **reading.seconds}

    def add_up(self) -> None:
        """Add up the readings of all workers."""
        each = list(self._readings.values())
        if not each:
            return
        for key in _SUMMED:
            setattr(self, key, sum(one.counts[key] for one in each))
        self.cost = sum(one.cost for one in each)
        self.queue_capacity = sum(one.queue_capacity for one in each)
        rows = sum(one.counts["queue_rows"] for one in each)
        self.queue_rows = lambda: rows
        self._sums.take(one.seconds for one in each)
        if done := [one.completed for one in each if one.completed is not None]:
            rows_done, tokens = sum(c.rows for c in done), sum(c.tokens for c in done)
            self.completed = Completed(rows_done, tokens, sum(c.recalled for c in done))
        self.caches = _summed_caches(one.caches for one in each)
        names = dict.fromkeys(name for one in each for name in one.times)
        self.times = {name: Histogram.summed(one.times.get(name, {}) for one in each) for name in names}

    def by_worker(self) -> Iterator[tuple[str | None, dict[str, float]]]:
        """Yield the driver's row counts, and of each worker its counts and clocks."""
        rows = {key: value for key, value in self.counts().items() if key not in _SUMMED}
        yield (
            None,
            {**dict.fromkeys(_SUMMED, 0), **rows, "queue_rows": 0, **dict.fromkeys((*CLOCKS, "wall_s"), 0.0)},
        )
        yield from list(self._each.items())


class SummedClock(StageClock):
    """The sum of the clocks of workers, each of which has busy + starved + blocked = wall."""

    def __init__(self) -> None:
        super().__init__()
        self._sums = Counter[str]()

    @property
    def state(self) -> StageState | None:
        return None

    def take(self, seconds: Iterator[Mapping[str, float]]) -> None:
        """Set the sums."""
        sums = Counter[str]()
        for one in seconds:
            sums.update(one)
        self._sums = sums

    def seconds(self) -> dict[str, float]:
        return {key: float(self._sums[key]) for key in (*CLOCKS, "wall_s")}


def _summed_caches(each: Iterator[Mapping[str, CacheUse]]) -> dict[str, CacheUse]:
    found: dict[str, CacheUse] = {}
    for caches in each:
        for name, use in caches.items():
            before = found.get(name, CacheUse())
            found[name] = CacheUse(before.queries + use.queries, before.hits + use.hits)
    return found
