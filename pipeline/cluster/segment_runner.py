"""A segment in a worker: an executor over [pieces, the segment's nodes, answers], in which each piece is a chunk."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

import pyarrow as pa

from pipeline.api.errors import Cancelled, ExitCode, Interrupted, NodeFailed, PipelineError
from pipeline.api.meter import StageMeter
from pipeline.api.protocols import Inbox, Operator, Runtime
from pipeline.api.records import Batch, ChunkEnd, Item, Rejects, Shard
from pipeline.api.runtime import RunContext
from pipeline.api.user_code import spelt
from pipeline.cluster.identity import contents_of, identities_of
from pipeline.cluster.pieces import SegmentTables, WorkRequest, WorkResult, from_ipc, one_batch, to_ipc
from pipeline.config.build import build_node
from pipeline.dataflow.executor import Executor
from pipeline.dataflow.graph import Graph, Node
from pipeline.run_dir.chunk_record import ChunkRecord
from pipeline.settings import NodeSettings
from pipeline.system.atomic_files import sorted_by_identity

PIECES, ANSWERS = "cluster_pieces", "cluster_answers"
"""Names of the source and of the sink of a worker's graph."""
LOOK_S = 0.2
"""Seconds between two looks of a waiting source at whether the worker is to stop."""
_MANY = 1 << 30
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SegmentPlan:
    """A segment as a worker builds it: its nodes in order, and the schema of its rows, serialised."""

    name: str
    nodes: Mapping[str, NodeSettings]
    schema: bytes


class WorkerFailed(NodeFailed):
    """A worker cannot go on: an operator raised, or its build, model or machine does not fit. It ends the run.

    Args:
        message: of the node that failed, without the worker's name.
        code: exit code of the run.
        host: the worker's machine, "" where that is not known.
    """

    def __init__(self, message: str, code: int = ExitCode.FAILED, host: str = "") -> None:
        PipelineError.__init__(self, message, code, host)  # what is pickled
        self.message, self.host = message, host
        self.exit_code = ExitCode(code)

    def __str__(self) -> str:
        return self.message


class NotOpened(WorkerFailed):
    """An operator cannot be opened in a worker. Where it could in another worker that is the machine's fault."""


class SegmentRunner:
    """One segment of a worker: its executor, in a thread. `context`: whose metrics tables are `tables`."""

    def __init__(self, plan: SegmentPlan, context: RunContext, tables: SegmentTables) -> None:
        self.context, self.tables = context, tables
        self._names = tuple(plan.nodes)
        self._source = _Pieces(pa.ipc.read_schema(pa.py_buffer(plan.schema)))
        self._rows, self._rejects = _Collected(), _Collected()
        nodes = {PIECES: Node(self._source)}
        before = PIECES
        for name, settings in plan.nodes.items():
            nodes[name] = replace(build_node(name, settings), inputs=(before,))
            before = name
        nodes[ANSWERS] = Node(self._rows, (before,))
        self._graph = Graph(nodes)
        self._executor = Executor(self._graph, context, self, max_open_chunks=_MANY, rejects=self._rejects)
        context.round_rows = lambda: self._source.round_rows
        self._thread = threading.Thread(target=self._run, name=f"segment-{plan.name}", daemon=True)
        self._failure: WorkerFailed | None = None

    @property
    def meters(self) -> list[StageMeter]:
        """Meters of the segment's nodes and of their parts."""
        return [m for m in self._executor.meters if m.name not in (PIECES, ANSWERS)]

    def start(self) -> None:
        """Open the operators; returns when they are open. Raises NotOpened."""
        self._thread.start()
        self._source.opened.wait()
        if self._failure is not None:
            raise NotOpened(str(self._failure), self._failure.exit_code)

    def identities(self) -> dict[str, str]:
        """Return what must be the same in all workers, by node."""
        return identities_of(self._graph)

    def content(self) -> dict[str, str]:
        """Return the code and the model files of its nodes, as the driver's; before anything is loaded."""
        return contents_of(self._graph, self._names)

    def compute(self, task: WorkRequest) -> Future[WorkResult]:
        """Take a piece; the future has the answer when it is done."""
        return self._source.put(task)

    def stop(self) -> None:
        self._executor.interrupt()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._executor.run()
        except Interrupted:
            self._source.fail(Cancelled())
        except BaseException as error:
            code = error.exit_code if isinstance(error, PipelineError) else ExitCode.FAILED
            text = str(error) if isinstance(error, PipelineError) else spelt(error)
            log.debug("the segment ends", exc_info=error)
            self._failure = WorkerFailed(text, int(code))
            self._source.fail(self._failure)
        finally:
            self._source.opened.set()

    def commit(self, record: ChunkRecord) -> None:
        """Answer the piece that is complete, in the order of pieces."""
        batches = [item.data for item in self._rows.take(record.chunk) if isinstance(item, Batch)]
        rows = sorted_by_identity(pa.Table.from_batches(batches, self._graph.schemas[self._names[-1]]))
        rejects = [(item.node, item.rows) for item in self._rejects.take(record.chunk) if isinstance(item, Rejects)]
        counts = {name: record.counts[name] for name in self._names}
        tables = self.tables.take(record.chunk, self._source.task(record.chunk).chunk)
        answer = WorkResult(to_ipc(one_batch(rows)), rejects, counts, tables)
        self._source.answered(record.chunk, answer)


class _Pieces(Operator):
    """The source of a segment's graph in a worker: each piece is a chunk."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._tasks: queue.SimpleQueue[tuple[WorkRequest, Future[WorkResult]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: dict[int, Future[WorkResult]] = {}
        self._error: BaseException | None = None
        self.opened = threading.Event()
        self.round_rows: int | None = None

    def plan(self) -> pa.Schema:
        return self._schema

    def open(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def put(self, task: WorkRequest) -> Future[WorkResult]:
        """Queue a piece."""
        future: Future[WorkResult] = Future()
        with self._lock:
            if self._error is not None:
                raise self._error
            self._tasks.put((task, future))
            self._open[id(future)] = future
        return future

    def task(self, chunk: int) -> WorkRequest:
        """Return the piece that is `chunk` here."""
        with self._lock:
            return self._begun[chunk][0]

    def answered(self, chunk: int, answer: WorkResult) -> None:
        """Give the future of `chunk` its answer."""
        with self._lock:
            _, future = self._begun.pop(chunk)
            self._open.pop(id(future), None)
        future.set_result(answer)

    def fail(self, error: BaseException) -> None:
        """Give `error` to all pieces that have no answer, and to later ones."""
        with self._lock:
            self._error = error
            futures, self._open = list(self._open.values()), {}
        for future in futures:
            if not future.done():
                future.set_exception(error)

    def run(self, inbox: Inbox) -> Iterator[Item | Shard]:
        self._begun: dict[int, tuple[WorkRequest, Future[WorkResult]]] = {}
        self.opened.set()
        chunk = 0
        while True:
            try:
                task, future = self._tasks.get(timeout=LOOK_S)
            except queue.Empty:
                if self._runtime.cancelled:
                    raise Cancelled from None
                continue
            with self._lock:
                self._begun[chunk] = task, future
            if task.round_rows is not None:  # an older piece, of when they were not known, may come after a newer one
                self.round_rows = task.round_rows
            data = from_ipc(task.rows)
            yield Batch(chunk, data)
            yield ChunkEnd(chunk, data.num_rows)
            chunk += 1


class _Collected(Operator):
    """Collects the batches, or as the reject writer the rejects, of each piece."""

    def __init__(self) -> None:
        self._items: dict[int, list[Item]] = {}

    def plan(self, *schemas: pa.Schema) -> None:
        pass

    def run(self, inbox: Inbox) -> Iterator[Item | Shard]:
        for item in inbox:
            if isinstance(item, ChunkEnd):
                yield item
            else:
                self._items.setdefault(item.chunk, []).append(item)

    def take(self, chunk: int) -> list[Item]:
        """Return what was collected of a piece that has ended."""
        return self._items.pop(chunk, [])
