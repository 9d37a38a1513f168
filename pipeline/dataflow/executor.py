"""Executor: run a graph with one thread per node; the first failure cancels all nodes and names its own."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pipeline.api.errors import Cancelled, ExitCode, Interrupted, NodeFailed, PipelineError, Released
from pipeline.api.meter import RowCounts, StageMeter, StageState
from pipeline.api.protocols import Operator, Sink, Source, remembers
from pipeline.api.records import Rejects
from pipeline.api.runtime import RunContext, Runtime
from pipeline.dataflow.commit import ChunkSink, ChunkWindow, Committer
from pipeline.dataflow.graph import REJECT_WRITER, Graph, Node
from pipeline.dataflow.inbox import Edge, NodeInbox
from pipeline.dataflow.node_failure import close_all, node_failed, running
from pipeline.dataflow.outbox import Outbox
from pipeline.dataflow.reject_writer import RejectTally, RejectWriter, counted_error
from pipeline.dataflow.stopper import Stopper
from pipeline.run_dir.names import REJECTS
from pipeline.system.deadlines import ENDING_S, GRACE_S, leave_after

REJECT_CAPACITY_ROWS = 4096
TICK_S = 0.2
"""Seconds between two calls of `tick`."""
OPENS = "left at once: an operator is being opened, and does not end. The same command begins or resumes the run"


class AccountingError(PipelineError):
    """The row counts of a node do not balance: rows_in + expanded differs from rows_out + rejected."""


@dataclass
class Stage:
    """A running node. `complete`: it has read all its input and returned."""

    name: str
    node: Node
    meter: StageMeter
    inbox: NodeInbox
    outbox: Outbox
    complete: bool = False

    def keep(self, errors: Rejects) -> None:
        """Count errors of rows that stay."""
        self.meter.keep(errors.chunk, (counted_error(reject.reason) for reject in errors.rows))

    def check_counts(self, committed: RowCounts) -> None:
        """Check that the row counts balance: of all rows if the node ran to its end, else of the `committed` chunks."""
        # The reject writer may have rejects of a chunk that never ended, from nodes that were released during it.
        m = self.meter if self.complete and self.name != REJECT_WRITER else committed
        if self.outbox.balances and m.rows_in + m.expanded != m.rows_out + m.rejected:
            raise AccountingError(
                f"node '{self.name}': {m.rows_in} rows in + {m.expanded} expanded"
                f" are not {m.rows_out} rows out + {m.rejected} rejected"
            )


class Executor:
    """Runs `graph` once.

    Args:
        keep: commits each complete chunk, in order.
        max_open_chunks: chunks that may be begun and uncommitted.
        first_chunk, last_chunk: of the source; None for the end of its input.
        states: by node, the operator states of earlier chunks.
        rejects: the sink of all rejects; None for one that writes them to the output directory.
        ending_s: seconds that an operator may take to close.
    """

    def __init__(
        self,
        graph: Graph,
        context: RunContext,
        keep: ChunkSink,
        *,
        max_open_chunks: int = 8,
        first_chunk: int = 0,
        last_chunk: int | None = None,
        states: Mapping[str, Iterable[bytes]] | None = None,
        rejects: Operator | None = None,
        ending_s: float = ENDING_S,
    ) -> None:
        self._graph = graph
        self._context = context
        self._states = states or {}
        self._first_chunk = first_chunk
        self._window = ChunkWindow(max_open_chunks, first_chunk, last_chunk)
        self._ending_s = ending_s
        self._opening = False
        self._stay: Callable[[], None] = lambda: None
        self._stopper = Stopper(context, self._release)
        self.left_in_close: NodeFailed | None = None
        """The failure of a node that left the process in `close`, when all was done."""
        self.tally = RejectTally()
        self._committer = Committer(graph.sinks, keep, self._window, self._stopper, self.tally)
        sink = graph.nodes[graph.sinks[0]].op if graph.sinks else None
        files = sink.reject_files if isinstance(sink, Sink) else None
        self._reject_sink = rejects or RejectWriter(context.output_dir / REJECTS, self.tally, files)
        self._stages = self._build()
        context.stop_after_chunk = self._committer.stop_after
        if (target := graph.target) is not None:
            target.measure(context.clock, lambda: self.meters)
            context.round_rows = lambda: target.round_rows

    @property
    def patience_s(self) -> float:
        """Seconds for which nothing may move, whatever else is set: something waits for a server."""
        return self._context.patience_s

    @property
    def meters(self) -> list[StageMeter]:
        """Meters of all nodes in topological order, then of the parts that operators have declared."""
        stages = [stage for name, stage in self._stages.items() if name != REJECT_WRITER]
        return [m for stage in stages for m in (stage.meter, *stage.node.meters)] + self._context.parts

    @property
    def source_ended(self) -> bool:
        """True once the source has sent its last item."""
        return self._stages[self._graph.source].complete

    def run(
        self,
        tick: Callable[[], None] = lambda: None,
        watch: AbstractContextManager[object] | None = None,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        """Open all operators, run the graph to its end, and close them.

        The first error cancels all nodes and is raised: NodeFailed, an error of a commit, or what `stop` was given. A
        run that ends by itself raises AccountingError if a node lost rows.

        Args:
            tick: called meanwhile (progress, metrics).
            watch: is open while rows flow.
            begin: called when all operators are open, before the first row.
        """
        opened: list[Stage] = []
        try:
            with self._stopper:  # what it aborts is open
                self._open_all(opened, begin)
                gc.freeze()  # what is there stays: to look at it again and again took a third of a template's time
                with watch or contextlib.nullcontext():
                    self._start_and_wait(tick)
        finally:
            gc.unfreeze()
            self._close(opened)
        if self._stopper.failure is not None:
            raise self._stopper.failure
        for stage in self._stages.values():
            stage.check_counts(self._committer.counts.get(stage.name, RowCounts()))

    def interrupt(self) -> None:
        """Stop the run as interrupted, at once. Nodes finish their step; an `open` has GRACE_S, and is left then."""
        self.stop(Interrupted("interrupted; run the same command again to resume"))
        if self._opening:
            self._stay = leave_after(GRACE_S, ExitCode.INTERRUPTED, OPENS)
        if not self._opening:  # any more
            self._stay()

    def stop(self, why: PipelineError | None) -> None:
        """Stop the run; `run` raises `why`, None if enough is committed. Returns at once. The first call counts."""
        self._stopper.stop(why)

    def abandon(self) -> None:
        """Have `run` of a stopped run wait no longer for threads that compute on. What they may use stays open."""
        self._stopper.abandoned.set()

    def describe(self) -> list[str]:
        """Return a line for each node: its state, and the rows that wait on its inputs."""
        return [
            f"{stage.name}: {stage.meter.clock.state}; rows in {stage.meter.rows_in}, out {stage.meter.rows_out},"
            f" rejected {stage.meter.rejected}; inputs: {stage.inbox.describe() or 'none'}"
            for stage in self._stages.values()
        ]

    def _build(self) -> dict[str, Stage]:
        nodes = {name: self._graph.nodes[name] for name in self._graph.order}
        nodes[REJECT_WRITER] = Node(self._reject_sink)
        meters = {name: StageMeter(name, self._context.clock) for name in nodes}
        inboxes = {name: NodeInbox(meters[name]) for name in nodes}
        readers: dict[str, list[Edge]] = {name: [] for name in nodes}
        for name, node in nodes.items():
            for source in node.inputs:
                readers[source].append(inboxes[name].connect(node.capacity_rows))
        stages = {}
        for name, node in nodes.items():
            rejects = None if name == REJECT_WRITER else inboxes[REJECT_WRITER].connect(REJECT_CAPACITY_ROWS)
            window = self._window if name == self._graph.source else None
            outbox = Outbox(name, node, meters[name], readers[name], rejects, self._committer, window)
            stages[name] = Stage(name, node, meters[name], inboxes[name], outbox)
        return stages

    def _open_all(self, opened: list[Stage], begin: Callable[[], None]) -> None:
        """Open all operators. `opened`: gets those that are to be closed, also one that opens half way."""
        self._opening = True
        try:
            for stage in self._stages.values():
                opened.append(stage)
                self._open(stage)
            begin()
        finally:
            self._opening = False
            self._stay()

    def _open(self, stage: Stage) -> None:
        depth = 0 if stage.name == REJECT_WRITER else self._graph.depth(stage.name)
        op = stage.node.op
        with contextlib.suppress(Cancelled), running(stage.name, self._context.output_dir):  # the failure says why
            if stage.name == self._graph.source and self._first_chunk:
                assert isinstance(op, Source)  # or the run is not resumed
                op.seek(self._first_chunk)
            if remembers(op) and stage.name in self._states:
                op.restore(self._states[stage.name])
            op.open(Runtime(self._context, stage.name, depth, stage.meter))
        if self._stopper.failure is not None:
            raise self._stopper.failure

    def _close(self, opened: list[Stage]) -> None:
        """Close operators, the last one first, unless a thread that was left behind may use them."""
        operators = [(stage.name, stage.node.op.close) for stage in reversed(opened)]
        half_open = operators[0][0] if operators and len(opened) < len(self._stages) else None
        shared, abandoned = self._context.resources.close, self._stopper.abandoned
        self.left_in_close = close_all(operators, shared, self._ending_s, abandoned, half_open)
        if abandoned.is_set():
            self._context.resources.leave_open()
            self._context.process.leave_open()

    def _start_and_wait(self, tick: Callable[[], None]) -> None:
        threads = [
            threading.Thread(target=self._run_stage, args=(stage,), name=f"node-{stage.name}", daemon=True)
            for stage in self._stages.values()
        ]
        try:
            for thread in threads:
                thread.start()
            self._wait(threads, tick)
        except BaseException as error:  # of `tick`, or no more threads: join all, since the operators are closed next
            self._stopper.cancel(PipelineError(f"the run could not be recorded: {type(error).__name__}: {error}"))
            self._wait([thread for thread in threads if thread.ident is not None])
            raise

    def _wait(self, threads: list[threading.Thread], tick: Callable[[], None] = lambda: None) -> None:
        for thread in threads:
            while thread.is_alive() and not self._stopper.abandoned.is_set():
                thread.join(TICK_S)
                tick()

    def _run_stage(self, stage: Stage) -> None:
        stage.meter.clock.start(StageState.BUSY)
        try:
            with contextlib.suppress(Released):
                self._pump(stage)
            if not self._context.cancelled.is_set():
                self._committer.leave(stage.name)
        except Cancelled:
            pass
        except BaseException as error:
            self._stopper.cancel(node_failed(stage.name, error, self._context.output_dir))
        finally:
            stage.inbox.leave()
            self._release_unread()
            stage.outbox.close()
            stage.meter.clock.stop()

    def _release_unread(self) -> None:
        """Release nodes whose readers have all left: they may wait for rows or for a commit that will never come."""
        for name in self._graph.order:
            readers = [self._stages[reader].inbox for reader, _ in self._graph.readers(name)]
            if readers and all(inbox.left for inbox in readers):
                self._stages[name].inbox.stop(Released)
                if name == self._graph.source:
                    self._window.stop(Released)

    def _pump(self, stage: Stage) -> None:
        op, keeper = stage.node.op, self._graph.keepers.get(stage.name)
        items = op.run(stage.inbox) if keeper is None else keeper.run(op.run, stage.inbox, stage.keep)
        try:
            for item in items:
                stage.outbox.put(item)
            stage.complete = stage.inbox.exhausted
        finally:
            if isinstance(items, Generator):
                items.close()

    def _release(self) -> None:
        """End all waits of all nodes: the run is cancelled."""
        self._window.stop(Cancelled)
        for stage in self._stages.values():
            stage.inbox.stop(Cancelled)
