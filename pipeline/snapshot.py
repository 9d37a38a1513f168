"""How far a run is and when it will be done, seen from outside while it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipeline.goal import Goal
from pipeline.meter import StageMeter
from pipeline.rejects import RejectTally

WINDOW_S = 20.0


@dataclass(frozen=True)
class Snapshot:
    """A moment of a run.

    Args:
        elapsed_s: since the attempt began.
        rows: source rows that are finished, with those of earlier attempts; estimated where rows are expanded.
        rows_total: source rows in all; None while unknown.
        fraction: share of the work that is done, 0 to 1; None while unknown.
        tokens_in, tokens_out: prompt and completion tokens of this attempt.
        tokens_in_per_s, tokens_out_per_s, rows_per_s: over the last 20 seconds.
        eta_s: seconds to the end; None while unknown.
        errors, filtered: rows rejected in this attempt.
        statuses: what operators say, for example "slots 15/16".
        accepted, wanted: under a target, rows that have come to its end and how many are wanted; else None.
    """

    elapsed_s: float
    rows: int
    rows_total: int | None
    fraction: float | None
    tokens_in: int
    tokens_out: int
    tokens_in_per_s: float
    tokens_out_per_s: float
    rows_per_s: float
    eta_s: float | None
    errors: int
    filtered: int
    statuses: tuple[str, ...]
    accepted: int | None = None
    wanted: int | None = None


@dataclass(frozen=True)
class _Mark:
    """The counters at one moment. `rows`: finished in this attempt."""

    t_s: float
    rows: int
    tokens_in: int
    tokens_out: int


class Observer:
    """Takes snapshots of a running graph.

    Args:
        meters: of all nodes and their parts; read anew each time, operators add parts when they open.
        source: name of the source node; the first of the meters has it.
        sinks: names of the sinks.
        tally: the rejects of this attempt.
        statuses: what operators have to say.
        operator: the source; its `total_rows()` and `fraction_read()` are asked where it has them.
        committed_rows: source rows that earlier attempts have finished.
        goal: the target, where there is one. Then progress is that of accepted rows.
    """

    def __init__(
        self,
        meters: Callable[[], Sequence[StageMeter]],
        source: str,
        sinks: Sequence[str],
        tally: RejectTally,
        statuses: Sequence[Callable[[], str]],
        operator: object,
        committed_rows: int = 0,
        goal: Goal | None = None,
    ) -> None:
        self._meters = meters
        self._source = source
        self._sinks = frozenset(sinks)
        self._tally = tally
        self._statuses = statuses
        self._total: Callable[[], int | None] = getattr(operator, "total_rows", lambda: None)
        self._read: Callable[[], float | None] = getattr(operator, "fraction_read", lambda: None)
        self._base = committed_rows
        self._goal = goal
        self._arrived_before: int | None = None
        self._marks: deque[_Mark] = deque()

    def take(self, now_s: float) -> Snapshot:
        """The run at `now_s` seconds since the attempt began."""
        meters = self._meters()
        mark = _Mark(now_s, self._finished(meters), sum(m.tokens_in for m in meters), sum(m.tokens_out for m in meters))
        self._marks.append(mark)
        while len(self._marks) > 2 and now_s - self._marks[1].t_s >= WINDOW_S:
            self._marks.popleft()
        total = self._rows_total(meters)
        rows = self._base + mark.rows if total is None else min(self._base + mark.rows, total)
        errors, rejected = self._tally.errors, self._tally.by_kind.total()
        shot = Snapshot(
            elapsed_s=now_s,
            rows=rows,
            rows_total=total,
            fraction=rows / total if total else None,
            tokens_in=mark.tokens_in,
            tokens_out=mark.tokens_out,
            tokens_in_per_s=self._rate(lambda m: m.tokens_in),
            tokens_out_per_s=self._rate(lambda m: m.tokens_out),
            rows_per_s=self._rate(lambda m: m.rows),
            eta_s=self._eta(mark, None if total is None else total - rows),
            errors=errors,
            filtered=rejected - errors,
            statuses=tuple(text for text in (status() for status in self._statuses) if text),
        )
        return shot if self._goal is None else self._towards(self._goal, shot)

    def _towards(self, goal: Goal, shot: Snapshot) -> Snapshot:
        """`shot` as progress towards a target: source rows say nothing of how many more it will take."""
        arrived = goal.wanted if goal.reached else min(goal.arrived, goal.wanted - 1)
        if self._arrived_before is None:
            self._arrived_before = arrived
        new = arrived - self._arrived_before
        return replace(
            shot,
            rows_total=None,
            fraction=arrived / goal.wanted,
            # When enough rows are there that are not the first ones, what is still to come is not known.
            eta_s=(goal.wanted - arrived) * shot.elapsed_s / new if new and goal.arrived < goal.wanted else None,
            accepted=arrived,
            wanted=goal.wanted,
        )

    def _finished(self, meters: Sequence[StageMeter]) -> int:
        """Source rows of this attempt that have reached a sink or the rejects.

        Sinks count what they take in: they write only at the end of a chunk. Expanded rows are shared out evenly.
        """
        arrived = max((m.rows_in for m in meters if m.name in self._sinks), default=0) + self._tally.by_kind.total()
        read = next((m.rows_out + m.rejected for m in meters if m.name == self._source), 0)
        expanded = sum(m.expanded for m in meters)
        return min(read, arrived * read // (read + expanded)) if read else 0

    def _rows_total(self, meters: Sequence[StageMeter]) -> int | None:
        total = self._total()
        if total is not None:
            return total
        fraction = self._read()
        read = next((m.rows_out + m.rejected for m in meters if m.name == self._source), 0)
        return round((self._base + read) / fraction) if fraction and read else None

    def _rate(self, count: Callable[[_Mark], int]) -> float:
        first, last = self._marks[0], self._marks[-1]
        return (count(last) - count(first)) / (last.t_s - first.t_s) if last.t_s > first.t_s else 0.0

    def _eta(self, mark: _Mark, remaining: int | None) -> float | None:
        """Remaining rows x mean tokens of a finished row / tokens per second; by rows where no tokens are counted."""
        if remaining is None or not mark.rows:
            return None
        tokens = mark.tokens_in + mark.tokens_out
        work, rate = (
            (remaining * tokens / mark.rows, self._rate(lambda m: m.tokens_in + m.tokens_out))
            if tokens
            else (float(remaining), self._rate(lambda m: m.rows))
        )
        return work / rate if rate > 0 else None
