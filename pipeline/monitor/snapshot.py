"""Snapshots of a running graph: rows, rates, queues and time left."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.api.meter import CLOCKS, RowCounts, StageMeter
from pipeline.api.protocols import Source
from pipeline.api.user_code import or_else
from pipeline.dataflow.executor import Executor
from pipeline.dataflow.graph import Graph
from pipeline.dataflow.target import NODE as TARGET
from pipeline.dataflow.target_progress import TargetProgress
from pipeline.monitor.time_left import work_done, work_left
from pipeline.run_dir.chunk_record import RejectCounts
from pipeline.run_dir.state import RunState, RunStatus

WINDOW_S = 20.0


@dataclass(frozen=True)
class NodeView:
    """State of a stage, named `node` or `node/part`. `busy`, `starved`, `blocked`: shares of the last 20 seconds."""

    name: str
    queue_rows: int
    queue_capacity: int
    busy: float
    starved: float
    blocked: float


@dataclass(frozen=True)
class Snapshot:
    """Progress of a run at one moment.

    Args:
        elapsed_s: seconds since the attempt began.
        rows: finished source rows, earlier attempts included; an estimate if rows are expanded or merged.
        rows_total: all source rows; None while unknown.
        rows_total_exact: False if the total is an estimate from the share of the input that was read.
        fraction: finished rows / all rows, 0 to 1; None while unknown.
        tokens_in, tokens_out: prompt and completion tokens of this attempt.
        tokens_in_per_s, tokens_out_per_s, rows_per_s: over the last 20 seconds.
        recalled: rows of this attempt that were not generated: from the store, or copied from an identical row.
        eta_s: seconds left; None while unknown. An upper bound if `recalled` is not 0, since more rows may be recalled.
        eta_unknown: reason why it is unknown; else empty.
        errors, filtered: rejected rows, committed ones of earlier attempts included.
        statuses: status texts of operators, for example "slots 15/16".
        queue: the node with the fullest input, of several the last: the bottleneck. None if no rows wait.
        nodes: all nodes and parts.
        accepted, wanted: under a target, accepted rows and how many are wanted; else None.
        kept: errors of rows that stay, like `filtered`.
        ending: the attempt is being stopped, or has ended; there is no time left to show.
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
    kept: int = 0

    def settled(self, state: RunState, status: RunStatus) -> Snapshot:
        """Return this one, the last of an attempt, with row counts of committed chunks only."""
        rejects, rows = state.rejects(), state.committed_rows
        done = status is RunStatus.DONE
        total = rows if done and self.wanted is None else self.rows_total
        accepted, fraction = self.accepted, rows / total if total else None
        if self.wanted is not None:
            accepted = state.accounts().get(TARGET, RowCounts()).rows_out
            fraction = accepted / self.wanted
        return replace(
            self,
            rows=rows,
            rows_total=total,
            rows_total_exact=done or self.rows_total_exact,
            fraction=fraction,
            accepted=accepted,
            errors=rejects.errors,
            filtered=rejects.filtered,
            kept=rejects.kept,
            eta_s=None,
            eta_unknown="",
        )


@dataclass(frozen=True)
class _Mark:
    """Counters at one moment, for rates. `rows`: finished in this attempt. `work`: see pipeline.monitor.time_left.
    `accepted`: under a target, rows that count towards it."""

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
    """Takes snapshots of a running graph. Under a target, progress is measured in accepted rows.

    Args:
        executor: of the graph. Its list of meters is read each time: operators add parts when they open.
        statuses: functions that return the status texts of operators.
        rows_before, rejects_before: source rows and rejects that earlier attempts have committed.
    """

    def __init__(
        self,
        graph: Graph,
        executor: Executor,
        statuses: Sequence[Callable[[], str]],
        rows_before: int,
        rejects_before: RejectCounts,
    ) -> None:
        self._graph = graph
        # Under a target, rows are counted where they arrive at the node `target`, which holds them until a chunk ends.
        ends = {i: (TARGET if graph.nodes[i].inputs == (TARGET,) else i) for i in graph.sinks}
        self._ends = tuple(ends.values())
        self._readers = Counter(source for node in graph.nodes.values() for source in node.inputs)
        self._target = graph.target
        self._executor = executor
        self._tally = executor.tally
        self._statuses = statuses
        self._rows_before = rows_before
        self._rejects_before = rejects_before
        self._marks: deque[_Mark] = deque()

    def take(self, now_s: float) -> Snapshot:
        """Return a snapshot. `now_s`: seconds since the attempt began."""
        listed = self._executor.meters
        meters = {meter.name: meter for meter in listed}
        mark = self._mark(now_s, meters)
        total, exact = self._rows_total(meters[self._graph.source])
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
            kept=self._rejects_before.kept + self._tally.kept,
            statuses=tuple(text for text in map(_shown, list(self._statuses)) if text),
            queue=_fullest(nodes),
            nodes=nodes,
        )
        return shot if self._target is None else self._towards(self._target, shot)

    def _towards(self, target: TargetProgress, shot: Snapshot) -> Snapshot:
        """Return `shot` with progress and time left by accepted rows instead of source rows."""
        accepted, rate = target.counted, self._rate(lambda m: m.accepted)
        # Once enough rows have arrived, but not yet the first ones, the time left cannot be estimated.
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
        """Take the counters now. Until the first progress only the last mark is kept, so that the time to load a model
        does not count in any rate."""
        finished = self._finished(meters)
        each = meters.values()
        mark = _Mark(
            now_s,
            finished,
            tokens_in=sum(m.tokens_in for m in each),
            tokens_out=sum(m.tokens_out for m in each),
            work=work_done(self._graph, meters, finished),
            accepted=0 if self._target is None else self._target.counted,
            clocks={m.name: m.clock.seconds() for m in each},
        )
        if not mark.moved:
            self._marks.clear()
        self._marks.append(mark)
        while len(self._marks) > 2 and now_s - self._marks[1].t_s >= WINDOW_S:
            self._marks.popleft()
        return mark

    def _finished(self, meters: Mapping[str, StageMeter]) -> int:
        """Estimate how many source rows of this attempt have reached a sink or the rejects.

        By the rows that sinks have taken in, since they write only at a chunk's end, as a share of all rows that there
        are: those read, made (fewer where rows are merged), and copied, where several nodes read one.
        """
        arrived = sum(meters[name].rows_in for name in self._ends) + self._tally.errors + self._tally.filtered
        source = meters[self._graph.source]
        read = source.rows_out + source.rejected
        expanded = sum(meters[name].expanded for name in self._graph.order)
        copied = sum(meters[name].rows_out * (readers - 1) for name, readers in self._readers.items())
        return min(read, arrived * read // max(1, read + expanded + copied))

    def _rows_total(self, source: StageMeter) -> tuple[int | None, bool]:
        """Return the number of source rows, and True if it is exact."""
        op = self._graph.nodes[self._graph.source].op
        total = or_else("the number of rows is not known", op.total_rows, None) if isinstance(op, Source) else None
        if total is not None:
            return total, True
        read = self._rows_before + source.rows_out + source.rejected
        if self._executor.source_ended:
            return read, True
        unknown = "the share that was read is not known"
        fraction = or_else(unknown, op.fraction_read, None) if isinstance(op, Source) else None
        return (max(read, round(read / fraction)) if fraction and read else None), False

    def _rate(self, count: Callable[[_Mark], int]) -> float:
        first, last = self._marks[0], self._marks[-1]
        return (count(last) - count(first)) / (last.t_s - first.t_s) if last.t_s > first.t_s else 0.0

    def _eta(self, meters: Mapping[str, StageMeter], mark: _Mark, total: int | None) -> tuple[float | None, str]:
        """Return the seconds left and an empty text, or None and the reason why they are unknown."""
        if total is None:
            return None, "how many rows the source has is not known yet"
        left, unknown = work_left(self._graph, meters, total - self._rows_before, mark.rows)
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
    """Return the last node of those with the fullest queue: the bottleneck, since queues fill up before it."""
    waiting = [(n.queue_rows / n.queue_capacity, i) for i, n in enumerate(nodes) if n.queue_capacity and n.queue_rows]
    return nodes[max(waiting)[1]].name if waiting else None


def _shown(status: Callable[[], str]) -> str:
    return or_else("the status of an operator is not shown", lambda: str(status() or ""), "")
