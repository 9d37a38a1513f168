"""Counters, clocks and histograms of a stage (a node, or a part of one).

`busy_s` near `wall_s`: this stage is the bottleneck. `starved_s` near `wall_s`: its input is mostly empty; look
upstream. `blocked_s` near `wall_s`: backpressure; look downstream. The three add up to `wall_s`.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from pipeline.api.numbers import Number

Clock = Callable[[], float]
Reading = dict[str, Any]
"""The counters and clocks of a stage at one moment, as `added` takes them."""


class StageState(StrEnum):
    """The state of a stage's thread."""

    BUSY = "busy"
    STARVED = "starved"
    BLOCKED = "blocked"


CLOCKS = tuple(f"{state}_s" for state in StageState)
"""The three clocks of a stage as columns: `busy_s`, `starved_s`, `blocked_s`."""
ROWS = ("rows_in", "rows_out", "expanded", "rejected")
COUNTS = {
    "rows_in": ("stage_rows_in_total", "Rows that a stage took from its inputs."),
    "rows_out": ("stage_rows_out_total", "Rows that a stage passed on or wrote."),
    "expanded": (None, "Rows that a stage made beyond one for one; below 0 where it merges rows."),
    "rejected": ("stage_rows_rejected_total", "Rows that a stage took out."),
    "batches": ("stage_batches_total", "Batches that a stage took in, or calls of the model."),
    "tokens_in": ("prompt_tokens_total", "Prompt tokens of rows that drew their first token."),
    "tokens_out": ("completion_tokens_total", "Completion tokens drawn."),
}
"""The counters of a stage: attributes of its meter, columns of metrics/stages.parquet and keys of status.json, with
their name for Prometheus and what they are. With workers the driver counts ROWS, by answers, so each once."""
TAKEN = {
    "stage_seconds",
    "cache_queries",
    "cache_hits",
    *(f"{name}".removesuffix("_total") for name, _ in COUNTS.values()),
}
"""Names that a number of an operator's own cannot have, as Prometheus has them of every run, with `_total`."""


class StageClock:
    """Three stopwatches, of which one runs from `start` to `stop`. Safe to read from another thread."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(StageState, 0.0)
        self._state: StageState | None = None
        self._since = 0.0

    @property
    def state(self) -> StageState | None:
        """The current state; None before `start` and after `stop`."""
        return self._state

    def start(self, state: StageState = StageState.BUSY) -> None:
        """Start the clock."""
        with self._lock:
            self._since, self._state = self._clock(), state

    def stop(self) -> None:
        """Stop the clock; later calls have no effect."""
        with self._lock:
            self._settle(None)

    def enter(self, state: StageState) -> StageState | None:
        """Switch to `state`. Returns the state before it; None if the clock does not run."""
        with self._lock:
            before = self._state
            if before is not None and before is not state:
                self._settle(state)
            return before

    @contextmanager
    def during(self, state: StageState) -> Iterator[None]:
        """Count the time inside the block as `state`."""
        before = self.enter(state)
        try:
            yield
        finally:
            if before is not None:
                self.enter(before)

    def seconds(self) -> dict[str, float]:
        """Return `busy_s`, `starved_s`, `blocked_s` and `wall_s` up to now."""
        with self._lock:
            self._settle(self._state)
            seconds = dict(zip(CLOCKS, self._seconds.values(), strict=True))
            return {**seconds, "wall_s": sum(seconds.values())}

    def set(self, seconds: Mapping[str, float]) -> None:
        """Take the sums of clocks that run elsewhere; this one does not run itself."""
        with self._lock:
            self._seconds = {state: seconds[f"{state}_s"] for state in StageState}

    def _settle(self, state: StageState | None) -> None:
        now = self._clock()
        if self._state is not None:
            self._seconds[self._state] += now - self._since
            self._since, self._state = now, state


@dataclass
class Completed:
    """Finished rows of a stage that generates; the time left is estimated from them.

    Args:
        rows: completions that were generated.
        tokens: their completion tokens.
        recalled: completions that were not generated: from the store, or copied from an identical row.
    """

    rows: int = 0
    tokens: int = 0
    recalled: int = 0


@dataclass(slots=True)
class RowCounts:
    """Row counts of a node: rows_in + expanded = rows_out + rejected. `told`: rows by what was said of them. `kept`: of
    the rows out those that stay with an error (`on_error: keep`), by its reason."""

    rows_in: int = 0
    expanded: int = 0
    rejected: int = 0
    rows_out: int = 0
    told: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)

    def add(self, other: RowCounts) -> None:
        self.told.update(other.told)
        if other.kept:
            self.kept.update(other.kept)
        self.rows_in += other.rows_in
        self.expanded += other.expanded
        self.rejected += other.rejected
        self.rows_out += other.rows_out


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


class StageMeter:
    """Counters of one stage. Only the stage's own thread writes them; any thread may read."""

    def __init__(self, name: str, clock: Clock = time.perf_counter) -> None:
        self.name = name
        self.clock = StageClock(clock)
        self.rows_in = self.rows_out = self.expanded = self.rejected = self.batches = 0
        self.tokens_in = 0
        """Prompt tokens processed."""
        self.tokens_out = 0
        """Completion tokens generated."""
        self.cost = 0.0
        """Money that was spent at a server, by `model.price_per_million`."""
        self.queue_rows: Callable[[], int] = lambda: 0
        """Rows that wait in the inbox."""
        self.queue_capacity = 0
        """Capacity of the inbox in rows; 0 for a source."""
        self.completed: Completed | None = None
        """None for a stage that does not generate."""
        self.caches: dict[str, CacheUse] = {}
        """Lookups by name of the cache."""
        self.times: dict[str, Histogram] = {}
        """Durations by what took them."""
        self.declared: dict[str, Number] = {}
        """What numbers are, by name; that of the run, once the stage is open."""
        self._chunks: dict[int, RowCounts] = {}

    def count(self, chunk: int, *, rows_in: int = 0, expanded: int = 0, rejected: int = 0, rows_out: int = 0) -> None:
        """Add rows of `chunk` to the totals and to the counts of that chunk."""
        self.add(chunk, RowCounts(rows_in, expanded, rejected, rows_out))

    def add(self, chunk: int, counts: RowCounts) -> None:
        """Add `counts` of `chunk`, as `count` does, and what was told of its rows."""
        self.rows_in += counts.rows_in
        self.expanded += counts.expanded
        self.rejected += counts.rejected
        self.rows_out += counts.rows_out
        self._chunks.setdefault(chunk, RowCounts()).add(counts)

    def tell(self, chunk: int, what: str, rows: int = 1) -> None:
        """Note what the user must know about `rows` of `chunk` that go on: the summary, run.log and the manifest have
        it, with the number of rows of all committed chunks. `what` takes few values in a run; 0: it is of no row."""
        self._chunks.setdefault(chunk, RowCounts()).told[what] += rows

    def keep(self, chunk: int, reasons: Iterable[str]) -> None:
        """Note rows of `chunk` that stay with an error, by the reasons under which they are counted."""
        self._chunks.setdefault(chunk, RowCounts()).kept.update(reasons)

    def take(self, chunk: int) -> RowCounts:
        """Return and forget the counts of `chunk`, which the stage has ended."""
        return self._chunks.pop(chunk, RowCounts())

    def counts(self) -> dict[str, int]:
        """Return all counters by column name of metrics/stages.parquet."""
        return {**{name: getattr(self, name) for name in COUNTS}, "queue_rows": self.queue_rows()}

    def histogram(self, name: str, about: str) -> Histogram:
        """Register durations, and return what counts them: in metrics/histograms.parquet, for Prometheus (as
        NAME_seconds), and in the report. `about`: what takes so long, in a sentence."""
        self.declared[name] = Number(about, "s")
        made = self.times[name] = Histogram()
        return made

    def by_worker(self) -> Iterator[tuple[str | None, dict[str, float]]]:
        """Yield the counts and clocks of each worker of a cluster that has the stage; (None, all of them) without."""
        yield None, {**self.counts(), **self.clock.seconds()}

    def read(self) -> Reading:
        """Return all that the stage has counted, as it is now."""
        return {
            "counts": {**self.counts(), **self.clock.seconds()},
            "cost": self.cost,
            "queue_capacity": self.queue_capacity,
            "completed": {} if self.completed is None else asdict(self.completed),
            "caches": {name: asdict(use) for name, use in list(self.caches.items())},
            "histograms": {name: histogram.read() for name, histogram in list(self.times.items())},
        }
