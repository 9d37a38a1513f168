"""Runs a graph: one thread a node, the first failure cancels all and names its node."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field

from pipeline.api.errors import Cancelled, Interrupted, NodeFailed, PipelineError, Released
from pipeline.api.meter import RowCounts, StageMeter, StageState
from pipeline.api.protocols import StreamOperator
from pipeline.api.records import Item, Shard
from pipeline.dataflow.as_stream import line_of, run_operator
from pipeline.dataflow.commit import ChunkWindow, CommitHook, Committer
from pipeline.dataflow.graph import REJECT_WRITER, Graph, Node
from pipeline.dataflow.inbox import Channel, Inbox
from pipeline.dataflow.outbox import Outbox
from pipeline.dataflow.reject_writer import RejectWriter
from pipeline.dataflow.runtime import NodeRuntime, RunContext
from pipeline.dataflow.stage import Stage
from pipeline.system.disk_errors import explained

REJECT_CAPACITY_ROWS = 4096
log = logging.getLogger(__name__)
GRACE_S = 2.0
"""A run that is told to stop finishes its step; what takes longer is cut off, where it can be."""


@dataclass
class ExecutorSettings:
    """How a graph is run.

    Args:
        max_open_chunks: chunks that may be begun and uncommitted.
        first_chunk: where the source begins (the number of committed chunks of a resumed run).
        states: by node, what an operator has kept with the chunks before.
        tick_s: seconds between two calls of `tick`.
        tick: called from the main thread while the graph runs (progress, metrics).
    """

    max_open_chunks: int = 8
    first_chunk: int = 0
    states: Mapping[str, Iterable[bytes]] = field(default_factory=dict)
    tick_s: float = 0.2
    tick: Callable[[], None] = field(default=lambda: None)


class Executor:
    """Runs `graph` once.

    Args:
        graph: the checked graph.
        rejects: the writer of rejected rows.
        context: what the nodes share.
        commit: called with each chunk that all sinks have ended, in order.
    """

    def __init__(
        self,
        graph: Graph,
        rejects: RejectWriter,
        context: RunContext,
        commit: CommitHook,
        settings: ExecutorSettings | None = None,
    ) -> None:
        self._graph = graph
        self._context = context
        self._settings = settings or ExecutorSettings()
        self._window = ChunkWindow(self._settings.max_open_chunks, self._settings.first_chunk)
        self._committer = Committer(graph.sinks, commit, self._window, self._leave_early)
        self._failure: PipelineError | None = None
        self._enough = False
        self._lock = threading.Lock()
        self._why: PipelineError | None = None
        self._told_to_stop = threading.Event()
        self._ended = threading.Event()
        self._stages = self._build(rejects)
        context.enough = self._committer.stop_after
        if graph.goal is not None:
            goal = graph.goal
            goal.measure(context.clock, lambda: sum(m.tokens_out for m in self.meters))
            context.round_rows = lambda: goal.round_rows

    @property
    def meters(self) -> list[StageMeter]:
        """The meters of all nodes in topological order, with the parts that operators declared."""
        return [s.meter for s in self._stages.values() if s.name != REJECT_WRITER] + self._context.parts

    @property
    def source_ended(self) -> bool:
        """Whether the source has sent all that it has."""
        return self._stages[self._graph.source].complete

    def run(self) -> None:
        """Run the graph to its end.

        Raises:
            NodeFailed: an operator raised; all others were cancelled.
            Interrupted: `interrupt` was called.
            AccountingError: a node lost rows.
        """
        opened: list[Stage] = []
        stopper = threading.Thread(target=self._stop_when_told, name="stop")
        stopper.start()
        try:
            for stage in self._stages.values():
                self._open(stage)
                opened.append(stage)
            self._start_and_wait()
        finally:
            self._ended.set()
            self._told_to_stop.set()
            stopper.join()
            for stage in reversed(opened):
                stage.node.op.close()
        if self._failure is not None:
            raise self._failure
        for stage in self._stages.values():
            stage.check_counts(self._committer.counts.get(stage.name, RowCounts()))

    def interrupt(self) -> None:
        """Stop: what runs finishes its step, nothing more is begun. Returns at once."""
        self.stop(Interrupted("interrupted; run the same command again to resume"))

    def stop(self, why: PipelineError) -> None:
        """End the run with `why`. Returns at once."""
        self._begin_to_stop(why)

    def describe(self) -> list[str]:
        """What every node is doing and what waits on its inputs, a line each."""
        return [
            f"{stage.name}: {stage.meter.clock.state}; rows in {stage.meter.rows_in}, out {stage.meter.rows_out},"
            f" rejected {stage.meter.rejected}; inputs: {stage.inbox.describe() or 'none'}"
            for stage in self._stages.values()
        ]

    def _build(self, rejects: RejectWriter) -> dict[str, Stage]:
        nodes = {**{n: self._graph.nodes[n] for n in self._graph.order}, REJECT_WRITER: Node(rejects)}
        meters = {name: StageMeter(name, self._context.clock) for name in nodes}
        inboxes = {name: Inbox(meters[name]) for name in nodes}
        readers: dict[str, list[Channel]] = {name: [] for name in nodes}
        for name, node in nodes.items():
            for source in node.inputs:
                readers[source].append(inboxes[name].connect(node.capacity_rows))
        return {name: self._stage(name, node, meters[name], inboxes, readers[name]) for name, node in nodes.items()}

    def _stage(
        self, name: str, node: Node, meter: StageMeter, inboxes: dict[str, Inbox], readers: list[Channel]
    ) -> Stage:
        is_rejects = name == REJECT_WRITER
        rejects = None if is_rejects else inboxes[REJECT_WRITER].connect(REJECT_CAPACITY_ROWS)
        window = self._window if name == self._graph.source else None
        outbox = Outbox(name, node.op, meter, readers, rejects, self._committer, window)
        return Stage(name, node, meter, inboxes[name], outbox, is_rejects or name in self._graph.sinks)

    def _open(self, stage: Stage) -> None:
        depth = 0 if stage.name == REJECT_WRITER else self._graph.depth(stage.name)
        op = stage.node.op
        try:
            if stage.name in self._settings.states:
                op.restore(self._settings.states[stage.name])
            op.open(NodeRuntime(self._context, stage.name, depth, stage.meter))
        except Exception as error:
            raise self._node_failed(stage.name, error) from error
        if self._failure is not None:
            raise self._failure

    def _start_and_wait(self) -> None:
        threads = [
            threading.Thread(target=self._run_stage, args=(stage,), name=f"node-{stage.name}")
            for stage in self._stages.values()
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(self._settings.tick_s)
                    self._settings.tick()
        except BaseException as error:  # of `tick`: no thread may outlive the run, the nodes are closed after this
            self._cancel(PipelineError(f"the run could not be recorded: {type(error).__name__}: {error}"))
            for thread in threads:
                thread.join()
            raise

    def _run_stage(self, stage: Stage) -> None:
        stage.meter.clock.start(StageState.BUSY)
        try:
            with contextlib.suppress(Released):
                self._pump(stage)
            if stage.is_sink and not self._context.cancelled.is_set():
                self._committer.leave(stage.name)
        except Cancelled:
            pass
        except BaseException as error:
            self._fail(stage.name, error)
        finally:
            stage.inbox.leave()
            self._release_unread()
            stage.outbox.close()
            stage.meter.clock.stop()

    def _release_unread(self) -> None:
        """Let nodes go that nobody reads any more. They may wait for rows or for a commit, and neither would come."""
        for name in self._graph.order:
            readers = [self._stages[reader].inbox for reader, _ in self._graph.readers(name)]
            if readers and all(inbox.left for inbox in readers):
                self._stages[name].inbox.release()
                if name == self._graph.source:
                    self._window.release()

    def _pump(self, stage: Stage) -> None:
        items = self._items(stage)
        try:
            for item in items:
                stage.outbox.put(item)
            stage.complete = stage.inbox.exhausted
        finally:
            items.close()

    def _items(self, stage: Stage) -> Generator[Item | Shard]:
        op = stage.node.op
        if isinstance(op, StreamOperator):
            yield from op.run(stage.inbox)
        else:
            yield from run_operator(op, stage.inbox, stage.node.on_error)

    def _fail(self, name: str, error: BaseException) -> None:
        failure = self._node_failed(name, error)
        failure.__cause__ = error
        self._cancel(failure)

    def _leave_early(self) -> None:
        """All that is needed is committed: end what still runs, as a run that is stopped does."""
        self._begin_to_stop(None)

    def _begin_to_stop(self, why: PipelineError | None) -> None:
        if not self._told_to_stop.is_set():
            self._why = why
            self._told_to_stop.set()

    def _stop_when_told(self) -> None:
        """In a thread of its own: who tells may hold locks that are taken here, and the main thread may compute."""
        self._told_to_stop.wait()
        if self._ended.is_set():
            return
        self._cancel(self._why)
        if not self._ended.wait(GRACE_S):
            for cut_off in list(self._context.when_stuck):
                cut_off()

    def _node_failed(self, name: str, error: BaseException) -> NodeFailed:
        cause = explained(error, self._context.output_dir)
        if not isinstance(cause, PipelineError) and (line := line_of(cause)) is not None:
            cause.add_note(line)
        return NodeFailed(name, cause)

    def _cancel(self, why: PipelineError | None) -> None:
        """Release all nodes. `why`: None where nothing more is needed; what goes wrong after that spoils nothing."""
        with self._lock:
            if why is None:
                self._enough = self._failure is None
            elif self._enough:
                log.info("after the last chunk was committed: %s", why)
            elif self._failure is None:
                self._failure = why
        self._context.cancelled.set()
        self._window.cancel()
        for stage in self._stages.values():
            stage.inbox.cancel()
