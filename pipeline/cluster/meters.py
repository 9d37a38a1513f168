"""Meters of nodes that run in workers, as the driver shows and records them."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.api.meter import ROWS, Completed, Reading, StageMeter
from pipeline.api.numbers import added


class RemoteMeter(StageMeter):
    """The meter of a node, or of a part of one, that several workers run. The driver counts rows, by answers, so each
    once; everything else is the sum over all workers, those that have ended included."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._each: dict[str, Reading] = {}
        self._sum: Reading = {}

    def update(self, worker: str, reading: Reading) -> None:
        """Take the latest reading of `worker`; it counts from the next `add_up` on."""
        self._each[worker] = {**reading, "counts": reading["counts"] | dict.fromkeys(ROWS, 0)}

    def add_up(self) -> None:
        """Add up the readings of all workers."""
        if not self._each:
            return
        self._sum = added(*self._each.values())
        counts = self._sum["counts"]
        self.batches, self.tokens_in, self.tokens_out = (counts[n] for n in ("batches", "tokens_in", "tokens_out"))
        self.clock.set(counts)
        self.queue_rows = lambda: int(counts["queue_rows"])
        self.cost, self.queue_capacity = self._sum["cost"], self._sum["queue_capacity"]
        if self._sum["completed"]:
            self.completed = Completed(**self._sum["completed"])

    def read(self) -> Reading:
        return super().read() | {kind: self._sum.get(kind, {}) for kind in ("caches", "histograms")}

    def by_worker(self) -> Iterator[tuple[str | None, dict[str, float]]]:
        """Yield the driver's row counts, and of each worker its counts and clocks."""
        yield None, {key: value if key in ROWS else 0 for key, value in super().read()["counts"].items()}
        yield from [(worker, reading["counts"]) for worker, reading in list(self._each.items())]
