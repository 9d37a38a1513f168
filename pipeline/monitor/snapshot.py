"""Snapshots of a running graph: rows, rates, queues, and the time that is left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.api.meter import CLOCKS, StageMeter
from pipeline.dataflow.executor import Executor
from pipeline.dataflow.graph import Graph
from pipeline.dataflow.reject_writer import RejectTally
from pipeline.dataflow.target import NODE as TARGET
from pipeline.dataflow.target_progress import TargetProgress
from pipeline.monitor.time_left import Outlook
from pipeline.run_dir.chunk_record import RejectCounts

WINDOW_S = 20.0


@dataclass(frozen=True)
class NodeView:
    """A node, or a part of one, at a moment.

    Args:
        name: of the node; a part has a slash in it.
        queue_rows, queue_capacity: rows that wait on its inputs, and that may wait there.
        busy, starved, blocked: shares of the last 20 seconds, 0 to 1.
    """

    name: str
    queue_rows: int
    queue_capacity: int
    busy: float
    starved: float
    blocked: float


@dataclass(frozen=True)
class Snapshot:
    """A moment of a run.

    Args:
        elapsed_s: since the attempt began.
        rows: source rows that are finished, with those of earlier attempts; estimated where rows are expanded.
        rows_total: source rows in all; None while unknown.
        rows_total_exact: False where the total is judged by the share of the input that is read.
        fraction: finished rows by all rows, 0 to 1; None while unknown.
        tokens_in, tokens_out: prompt and completion tokens of this attempt.
        tokens_in_per_s, tokens_out_per_s, rows_per_s: over the last 20 seconds.
        recalled: rows of this attempt that cost no computing: from a store, or identical to another one.
        eta_s: seconds to the end; None while unknown. Where `recalled` is not 0 it is an upper bound: more may be.
        eta_unknown: why it is unknown; empty where it is not.
        errors, filtered: rows rejected, with those of committed chunks of earlier attempts.
        statuses: what operators say, for example "slots 15/16".
        queue: the node whose input is fullest, of several the last: that stage is what the others wait for. None
            where nothing waits.
        nodes: all nodes and parts.
        accepted, wanted: under a target, rows that have come to its end and how many are wanted; else None.
        ending: the attempt is being stopped, or has ended: there is no time left to tell.
    """

    elapsed_s: float
    rows: int
    rows_total: int | None
    rows_total_exact: bool
    fraction: float | None
    tokens_in: int
    tokens_out: int
    tokens_in_per_s: float
    tokens_out_per_s: float
    rows_per_s: float
    recalled: int
    eta_s: float | None
    eta_unknown: str
    errors: int
    filtered: int
    statuses: tuple[str, ...]
    queue: str | None
    nodes: tuple[NodeView, ...]
    accepted: int | None = None
    wanted: int | None = None
    ending: bool = False


@dataclass(frozen=True)
class _Mark:
    """The counters at one moment. `rows`: finished in this attempt. `work`: see pipeline.monitor.time_left. `accepted`:
    under a target, rows that count towards it."""

    t_s: float
    rows: int
    tokens_in: int
    tokens_out: int
    work: int
    accepted: int
    clocks: Mapping[str, Mapping[str, float]]

    @property
    def moved(self) -> bool:
        return bool(self.rows or self.tokens_in or self.tokens_out)


class Observer:
    """Takes snapshots of a running graph.

    Args:
        graph: the graph. Under a target, progress is that of accepted rows.
        executor: runs it. Its meters are read anew each time: operators add parts when they open.
        statuses: what operators have to say.
        tally: the rejects of this attempt.
        rows_before, rejects_before: source rows and rejects that earlier attempts have committed.
    """

    def __init__(
        self,
        graph: Graph,
        executor: Executor,
        statuses: Sequence[Callable[[], str]],
        tally: RejectTally,
        rows_before: int,
        rejects_before: RejectCounts,
    ) -> None:
        self._source = graph.source
        # The node `target` holds the rows that the sink gets.
        self._sinks = graph.sinks if graph.target is None else (TARGET,)
        self._target = graph.target
        self._outlook = Outlook({name: graph.nodes[name].inputs for name in graph.order})
        self._operator = graph.nodes[graph.source].op
        self._executor = executor
        self._statuses = statuses
        self._tally = tally
        self._rows_before = rows_before
        self._rejects_before = rejects_before
        self._marks: deque[_Mark] = deque()

    def take(self, now_s: float) -> Snapshot:
        """The run at `now_s` seconds since the attempt began."""
        listed = self._executor.meters
        meters = {meter.name: meter for meter in listed}
        mark = self._mark(now_s, meters)
        total, exact = self._rows_total(meters[self._source])
        rows = self._rows_before + mark.rows
        rows = rows if total is None else min(rows, total)
        eta_s, unknown = self._eta(meters, mark, total)
        nodes = tuple(self._view(meter, mark) for meter in listed)
        shot = Snapshot(
            elapsed_s=now_s,
            rows=rows,
            rows_total=total,
            rows_total_exact=exact,
            fraction=rows / total if total else None,
            tokens_in=mark.tokens_in,
            tokens_out=mark.tokens_out,
            tokens_in_per_s=self._rate(lambda m: m.tokens_in),
            tokens_out_per_s=self._rate(lambda m: m.tokens_out),
            rows_per_s=self._rate(lambda m: m.rows),
            recalled=sum(m.completed.recalled for m in listed if m.completed is not None),
            eta_s=eta_s,
            eta_unknown=unknown,
            errors=self._rejects_before.errors + self._tally.errors,
            filtered=self._rejects_before.filtered + self._tally.filtered,
            statuses=tuple(text for text in (status() for status in self._statuses) if text),
            queue=_fullest(nodes),
            nodes=nodes,
        )
        return shot if self._target is None else self._towards(self._target, shot)

    def _towards(self, target: TargetProgress, shot: Snapshot) -> Snapshot:
        """`shot` as progress towards a target: source rows say nothing of how many more it will take."""
        accepted, rate = target.counted, self._rate(lambda m: m.accepted)
        # When enough rows are there that are not the first ones, what is still to come is not known.
        known = rate > 0 and target.arrived < target.wanted
        return replace(
            shot,
            rows_total=None,
            fraction=accepted / target.wanted,
            eta_s=(target.wanted - accepted) / rate if known else None,
            eta_unknown="" if known else "how many rows pass is not known yet",
            accepted=accepted,
            wanted=target.wanted,
        )

    def _mark(self, now_s: float, meters: Mapping[str, StageMeter]) -> _Mark:
        """The counters now. While nothing has happened yet only the last moment is kept: the time in which a model is
        loaded is no part of any rate."""
        finished = self._finished(meters)
        each = meters.values()
        tokens_in, tokens_out = sum(m.tokens_in for m in each), sum(m.tokens_out for m in each)
        clocks = {m.name: m.clock.seconds() for m in each}
        accepted = 0 if self._target is None else self._target.counted
        work = self._outlook.done(meters, finished)
        mark = _Mark(now_s, finished, tokens_in, tokens_out, work, accepted, clocks)
        if not mark.moved:
            self._marks.clear()
        self._marks.append(mark)
        while len(self._marks) > 2 and now_s - self._marks[1].t_s >= WINDOW_S:
            self._marks.popleft()
        return mark

    def _finished(self, meters: Mapping[str, StageMeter]) -> int:
        """Source rows of this attempt that have reached a sink or the rejects.

        Sinks count what they take in: they write only at the end of a chunk. Expanded rows are shared out evenly.
        """
        arrived = max(meters[name].rows_in for name in self._sinks) + self._tally.errors + self._tally.filtered
        read = meters[self._source].rows_out + meters[self._source].rejected
        expanded = sum(m.expanded for m in meters.values())
        return min(read, arrived * read // (read + expanded)) if read else 0

    def _rows_total(self, source: StageMeter) -> tuple[int | None, bool]:
        """Source rows in all, and whether that is exact."""
        total = self._operator.total_rows()
        if total is not None:
            return total, True
        read = self._rows_before + source.rows_out + source.rejected
        if self._executor.source_ended:
            return read, True
        fraction = self._operator.fraction_read()
        return (max(read, round(read / fraction)) if fraction and read else None), False

    def _rate(self, count: Callable[[_Mark], int]) -> float:
        first, last = self._marks[0], self._marks[-1]
        return (count(last) - count(first)) / (last.t_s - first.t_s) if last.t_s > first.t_s else 0.0

    def _eta(self, meters: Mapping[str, StageMeter], mark: _Mark, total: int | None) -> tuple[float | None, str]:
        """Seconds that are left, or why they are unknown."""
        if total is None:
            return None, "how many rows the source has is not known yet"
        left, unknown = self._outlook.left(meters, total - self._rows_before, mark.rows)
        if left is None:
            return None, unknown
        rate = self._rate(lambda m: m.work)
        if left > 0 and rate <= 0:
            return None, f"nothing was finished in the last {WINDOW_S:.0f} s" if mark.moved else "nothing is done yet"
        return (left / rate if left > 0 else 0.0), ""

    def _view(self, meter: StageMeter, mark: _Mark) -> NodeView:
        now, then = mark.clocks[meter.name], self._marks[0].clocks.get(meter.name, {})
        gains = {key: now[key] - then.get(key, 0.0) for key in (*CLOCKS, "wall_s")}
        wall = gains["wall_s"]
        busy, starved, blocked = (gains[key] / wall if wall > 0 else 0.0 for key in CLOCKS)
        return NodeView(meter.name, meter.queue_rows(), meter.queue_capacity, busy, starved, blocked)


def _fullest(nodes: Sequence[NodeView]) -> str | None:
    """The node before the slowest stage: behind that no queue is full, before it all are."""
    waiting = [(n.queue_rows / n.queue_capacity, i) for i, n in enumerate(nodes) if n.queue_capacity and n.queue_rows]
    return nodes[max(waiting)[1]].name if waiting else None
