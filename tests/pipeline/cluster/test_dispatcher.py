"""An answer counts once: what a worker says that was taken for dead is not taken, since another has its pieces. And a
place on which all workers end, on workers in threads: the run goes on elsewhere, and no byte changes."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.api.errors import ExitCode
from pipeline.api.meter import RowCounts
from pipeline.api.records import Batch
from pipeline.api.runtime import Resources, RunContext
from pipeline.cluster.assignments import Assignments
from pipeline.cluster.dispatcher import Dispatcher
from pipeline.cluster.identity import WorkerIdentity
from pipeline.cluster.members import Members
from pipeline.cluster.pieces import WorkerReport, WorkRequest, WorkResult
from pipeline.cluster.places import MOST_STARTS, Place
from pipeline.cluster.pool import WorkerLost
from pipeline.cluster.segments import Segment
from pipeline.cluster.worker import Worker
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.settings import ClusterSettings
from tests.pipeline.cluster.cluster_runs import bytes_of, run
from tests.pipeline.cluster.thread_pool import ThreadHandle, ThreadPool, workers_in_threads

SCHEMA = pa.schema([("row", pa.int64())])
CHAIN = Segment("workers_1", ("generate",), SCHEMA, SCHEMA)
LIMIT_S = 30.0


class Handle:
    """A worker that answers when a test says so."""

    def __init__(self) -> None:
        self._calls: dict[str, queue.SimpleQueue[Future[Any]]] = {m: queue.SimpleQueue() for m in ("open", "compute")}

    def call(self, method: str, *args: object) -> Future[Any]:
        future: Future[Any] = Future()
        if method == "stop":
            future.set_result(WorkerReport())
        else:
            self._calls[method].put(future)
        return future

    def next(self, method: str) -> Future[Any]:
        """Wait for the next call of `method`."""
        return self._calls[method].get(timeout=LIMIT_S)

    def kill(self) -> None:
        pass


class Run:
    """A dispatcher of one worker, and the pool that starts it."""

    fits, lost = 1, None

    def __init__(self, folder: Path) -> None:
        self._started: queue.SimpleQueue[Handle] = queue.SimpleQueue()
        self._woken = threading.Semaphore(0)
        settings, tables = ClusterSettings(), MetricsTables(folder)
        self.context = RunContext(folder, Resources(), tables.get, clock=lambda: 0.0)
        members = Members(settings, 1, self, self.context, tables, {}, lambda identity: None, None)
        self.dispatcher = Dispatcher(members, Assignments(2), self.context, [CHAIN])
        self.dispatcher.connect(CHAIN.name, self._woken.release)
        self.dispatcher.start()

    def start_worker(self, name: str) -> Handle:
        handle = Handle()
        self._started.put(handle)
        return handle

    def missing(self) -> str:
        return "no room"

    def close(self) -> None:
        pass

    def opened(self) -> Handle:
        """Wait for the next worker, and let it open."""
        handle = self._started.get(timeout=LIMIT_S)
        handle.next("open").set_result(WorkerIdentity("", {}, {}))
        return handle

    def answers(self, count: int) -> list[tuple[int, bytes]]:
        """Wait for so many answers; return the numbers of their pieces, and their rows."""
        for _ in range(count):
            assert self._woken.acquire(timeout=LIMIT_S)
        return [(piece.number, answer.rows) for piece, answer in self.dispatcher.take(CHAIN.name)]


@contextmanager
def running(folder: Path) -> Iterator[Run]:
    run = Run(folder)
    try:
        yield run
    finally:
        run.dispatcher.close()


def test_a_late_answer_of_a_worker_that_was_taken_for_dead_is_not_taken(tmp_path: Path) -> None:
    counts = {"generate": RowCounts(rows_in=1, rows_out=1)}
    with running(tmp_path) as run:
        for row in range(2):
            run.dispatcher.submit(CHAIN.name, Batch(0, pa.record_batch([[row]], schema=SCHEMA)))
        first = run.opened()
        lost, late = first.next("compute"), first.next("compute")
        lost.set_exception(WorkerLost("its node does not answer"))
        second = run.opened()
        again = [second.next("compute"), second.next("compute")]
        late.set_result(WorkResult(b"late", [], counts))
        for number, future in enumerate(again):
            future.set_result(WorkResult(b"again %d" % number, [], counts))
        assert run.answers(2) == [(0, b"again 0"), (1, b"again 1")]
        assert not run.dispatcher.take(CHAIN.name)
    found = {key: value for each in run.context.totals for key, value in each().items()}
    assert (found["cluster/pieces"], found["cluster/pieces_redone"]) == (4, 2)


def test_the_status_says_how_many_are_open_and_how_many_rest(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        status = run.context.statuses[0]
        assert status() == "workers 0/1"
        run.dispatcher._members.places.all[0].rest(0.0)
        assert status() == "workers 0/1, 1 rests after failures"


FAKE = ("model=fake", "chunk_rows=16", "sampling.max_tokens=8")


@pytest.mark.parametrize("method", ["open", "compute"])
def test_a_place_whose_workers_all_end_changes_no_byte(method: str, tmp_path: Path, monkeypatch) -> None:
    """They end when they open, until the place rests and others begin; or with what they are to compute."""
    start_worker, rest, compute, rests = ThreadPool.start_worker, Place.rest, Worker.compute, threading.Event()

    def start_one(self: ThreadPool, name: str) -> ThreadHandle:
        handle = start_worker(self, name)
        if name.partition(".")[0] == "2":
            monkeypatch.setattr(handle, "call", lambda called, *args: end(handle, called, *args))
        return handle

    def end(handle: ThreadHandle, called: str, *args: object) -> Future[object]:
        if called == method:
            handle.kill()
        return ThreadHandle.call(handle, called, *args)

    def begin_to_rest(self: Place, now: float) -> float:
        rests.set()
        return rest(self, now)

    def wait(self: Worker, task: WorkRequest) -> WorkResult:
        assert method == "compute" or rests.wait(120)
        return compute(self, task)

    assert run("quickstart", tmp_path / "alone", *FAKE) == ExitCode.DONE
    for where, name, new in (
        (ThreadPool, "start_worker", start_one),
        (Place, "rest", begin_to_rest),
        (Worker, "compute", wait),
    ):
        monkeypatch.setattr(where, name, new)
    with workers_in_threads():
        assert run("quickstart", tmp_path / "out", *FAKE, "cluster=processes", "cluster.piece_rows=2") == ExitCode.DONE
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "alone")
    status = json.loads((tmp_path / "out/status.json").read_text())
    assert status["workers"]["workers_wanted"] == 2
    if method == "open":
        assert any("workers 1/2, 1 rests after failures" in text for text in status["statuses"])
        assert status["workers"]["workers_open"] == 1
        assert status["workers"]["workers_lost"] == MOST_STARTS
