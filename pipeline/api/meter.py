"""The meters of a stage: rows, tokens, batches, and its time.

A stage's time has three clocks. `busy_s` near `wall_s`: this stage sets the pace. `starved_s` near `wall_s`: its input
is mostly empty, look upstream. `blocked_s` near `wall_s`: its readers are full, look downstream. Each interval is
measured where it begins and ends, by an injected clock, so that the three add up to `wall_s`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

Clock = Callable[[], float]


class StageState(StrEnum):
    """The state of a stage's thread."""

    BUSY = "busy"
    STARVED = "starved"
    BLOCKED = "blocked"


CLOCKS = tuple(f"{state}_s" for state in StageState)
"""The three clocks of a stage as columns: `busy_s`, `starved_s`, `blocked_s`."""


class StageClock:
    """Three stopwatches, of which one runs from `start` to `stop`. Safe to read from another thread."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(StageState, 0.0)
        self._state: StageState | None = None
        self._since = 0.0
        self._started = 0.0
        self._wall = 0.0

    @property
    def state(self) -> StageState | None:
        """The present state; None before the start and after the end."""
        return self._state

    def start(self, state: StageState = StageState.BUSY) -> None:
        """Begin to measure."""
        with self._lock:
            self._started = self._since = self._clock()
            self._state = state

    def stop(self) -> None:
        """End the measurement; later calls change nothing."""
        with self._lock:
            if self._state is not None:
                self._settle(None)

    def enter(self, state: StageState) -> StageState | None:
        """Switch to `state`; returns the state before (None when the clock does not run)."""
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
            if self._state is not None:
                self._settle(self._state)
            return {f"{s.value}_s": self._seconds[s] for s in StageState} | {"wall_s": self._wall}

    def _settle(self, state: StageState | None) -> None:
        now = self._clock()
        if self._state is not None:
            self._seconds[self._state] += now - self._since
        self._since, self._state, self._wall = now, state, now - self._started


@dataclass
class Completed:
    """The rows that a stage that generates has finished, from which the cost of the others is estimated.

    Args:
        rows: completions that were computed to their end.
        tokens: completion tokens of these.
        recalled: rows that were complete without computing: from a store, or identical to another one.
    """

    rows: int = 0
    tokens: int = 0
    recalled: int = 0


@dataclass(slots=True)
class RowCounts:
    """Row counts of a node. Nothing is lost: rows_in + expanded = rows_out + rejected."""

    rows_in: int = 0
    expanded: int = 0
    rejected: int = 0
    rows_out: int = 0

    def add(self, other: RowCounts) -> None:
        """Count the rows of `other` too."""
        self.rows_in += other.rows_in
        self.expanded += other.expanded
        self.rejected += other.rejected
        self.rows_out += other.rows_out


class StageMeter:
    """The counters of one stage. Written by the stage's own thread only; read by the metrics."""

    def __init__(self, name: str, clock: Clock = time.perf_counter) -> None:
        self.name = name
        self.clock = StageClock(clock)
        self.rows_in = 0
        self.rows_out = 0
        self.expanded = 0
        self.rejected = 0
        self.batches = 0
        self.tokens_in = 0
        """Prompt tokens worked on."""
        self.tokens_out = 0
        """Completion tokens made."""
        self.queue_rows: Callable[[], int] = lambda: 0
        """Rows that wait in the inbox now."""
        self.queue_capacity = 0
        """Rows that may wait there; 0 for a source."""
        self.completed: Completed | None = None
        """None for a stage that generates nothing."""
        self._chunks: dict[int, RowCounts] = {}

    def count(self, chunk: int, *, rows_in: int = 0, expanded: int = 0, rejected: int = 0, rows_out: int = 0) -> None:
        """Count rows of `chunk`, in the totals and for the account of that chunk."""
        self.rows_in += rows_in
        self.expanded += expanded
        self.rejected += rejected
        self.rows_out += rows_out
        counts = self._chunks.get(chunk)
        if counts is None:
            counts = self._chunks[chunk] = RowCounts()
        counts.rows_in += rows_in
        counts.expanded += expanded
        counts.rejected += rejected
        counts.rows_out += rows_out

    def take(self, chunk: int) -> RowCounts:
        """Remove and return the account of a chunk that the stage ends."""
        return self._chunks.pop(chunk, RowCounts())

    def counts(self) -> dict[str, int]:
        """All counters by column name."""
        return {
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "expanded": self.expanded,
            "rejected": self.rejected,
            "batches": self.batches,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "queue_rows": self.queue_rows(),
        }
