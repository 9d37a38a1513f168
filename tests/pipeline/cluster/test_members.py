"""What becomes of workers that end, stall, or are not what the driver is, on workers that do nothing, and a clock."""

from __future__ import annotations

import logging
import queue
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from pipeline.api.errors import ConfigError, ExitCode, PipelineError
from pipeline.api.runtime import Resources, RunContext
from pipeline.cluster.identity import CODE, WorkerIdentity
from pipeline.cluster.members import STACKS_S, Members
from pipeline.cluster.pieces import WorkerReport
from pipeline.cluster.places import MOST_GIVEN_UP, MOST_REST_S, MOST_STARTS, REST_S
from pipeline.cluster.pool import WorkerLost
from pipeline.cluster.segment_runner import NotOpened, WorkerFailed
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.settings import ClusterSettings

STALL_S, START_S = 100.0, 600.0


class Handle:
    def __init__(self) -> None:
        self.calls: dict[str, Future[Any]] = {}
        self.killed = 0

    def call(self, method: str, *args: object) -> Future[Any]:
        self.calls[method] = Future()
        return self.calls[method]

    def kill(self) -> None:
        self.killed += 1


class Run:
    """Members of a run, whose workers answer when a test says so."""

    def __init__(self, folder: Path, workers: int = 1, began_with: Any = lambda identity: None) -> None:
        self.now = 0.0
        self.started_workers: dict[str, Handle] = {}
        self.joined: list[str] = []
        self.left: list[tuple[str, str]] = []
        self.lost = None
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        settings = ClusterSettings(start_timeout_s=START_S)
        tables = MetricsTables(folder)
        context = RunContext(folder, Resources(), tables.get, clock=lambda: self.now)
        self.members = Members(settings, workers, self, context, tables, {}, began_with, STALL_S)
        self.members.start(self._events.put, self.joined.append, lambda name, why: self.left.append((name, why)))

    fits = 1

    def start_worker(self, name: str) -> Handle:
        self.started_workers[name] = Handle()
        return self.started_workers[name]

    def missing(self) -> str:
        return "no room"

    def close(self) -> None:
        pass

    def answer(self, name: str, method: str, found: object) -> None:
        future = self.started_workers[name].calls.pop(method)
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(found)
        while not self._events.empty():
            self._events.get()()

    def open(self, name: str, host: str = "", code: str = "a") -> None:
        self.answer(name, "open", WorkerIdentity(host, {CODE: code}, {}))

    def end(self, name: str, why: str = "its process ended by signal SIGKILL", host: str = "") -> None:
        self.answer(name, "open" if name not in self.joined else "report", WorkerLost(why, host))

    def last(self, place: int) -> str:
        """The worker of a place that was started last."""
        return [name for name in self.started_workers if name.partition(".")[0] == f"{place}"][-1]

    def end_all_of(self, place: int, *, opened: bool) -> None:
        """Have workers of a place end, open or not, until it rests."""
        started = 0
        while started < len(self.started_workers):
            started, name = len(self.started_workers), self.last(place)
            if opened:
                self.open(name, host="sick")
                self.look()
            self.end(name, host="sick")

    def look(self, after_s: float = 1.0, *, busy: bool = False) -> None:
        self.now += after_s
        self.members.look(lambda worker: busy)


def test_the_wait_for_a_worker_begins_anew_when_all_are_lost(tmp_path: Path) -> None:
    """A cluster may lose all its nodes in the middle of a run, and get others or not."""
    run = Run(tmp_path)
    run.open("1")
    run.look(START_S * 3)
    run.end("1")
    run.look(START_S - 1)
    run.open("1.2")
    run.look(START_S)
    run.end("1.2")
    run.look(START_S - 1)
    with pytest.raises(PipelineError, match=r"cluster.start_timeout_s=600 s: no room"):
        run.look(2.0)


def test_a_worker_that_cannot_be_reached_gives_up_its_place(tmp_path: Path) -> None:
    """Its process may live on behind a broken connection, and hold the GPU that the next one needs."""
    run = Run(tmp_path)
    run.open("1")
    run.look()
    run.end("1")
    assert run.started_workers["1"].killed == 1
    assert run.left == [("1", "its process ended by signal SIGKILL")]
    assert list(run.started_workers) == ["1", "1.2"]


def test_a_stalled_worker_says_where_it_is_and_is_ended(tmp_path: Path, caplog) -> None:
    run = Run(tmp_path, workers=2)
    for name in ("1", "2"):
        run.open(name)
    with caplog.at_level(logging.ERROR):
        run.look(STALL_S + 1, busy=True)
        run.answer("1", "stacks", "thread engine: in llama_decode")
        run.look(STACKS_S + 0.5, busy=True)
    assert "worker 1, where nothing moves:\nthread engine: in llama_decode" in caplog.text
    assert run.started_workers["1"].killed
    assert run.started_workers["2"].killed  # it did not even answer
    assert run.members.totals()["cluster/workers_stalled"] == 2


def test_rows_that_end_workers_one_after_another_do_not_end_the_run(tmp_path: Path) -> None:
    """Each of them is given up after several workers; only when nothing but such rows comes are workers broken."""
    run = Run(tmp_path)
    name, generation = "1", 1
    for row in range(MOST_GIVEN_UP + 1):
        for _ in range(5):  # more in all than may end without an answer or a row that is given up
            run.open(name)
            run.look()
            run.end(name)
            generation += 1
            name = f"1.{generation}"
        if row < MOST_GIVEN_UP:
            run.members.places.note_given_up("SIGSEGV")
    with pytest.raises(PipelineError, match="each of 16 rows in a row ended its workers, the last one: SIGSEGV"):
        run.members.places.note_given_up("SIGSEGV")


def test_workers_that_end_on_everything_end_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for name in ["1", *(f"1.{generation}" for generation in range(2, 18))]:
        run.open(name)
        run.look()
        run.end(name)
    run.open("1.18")
    run.look()
    with pytest.raises(PipelineError, match="18 workers in a row ended without an answer"):
        run.end("1.18")


def test_counters_are_asked_for_once_at_a_time(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.open("1")
    run.look()
    first = run.started_workers["1"].calls["report"]
    run.look(50.0)
    assert run.started_workers["1"].calls["report"] is first
    run.answer("1", "report", WorkerReport(totals={"generate/steps": 3.0}))
    run.look()
    assert run.started_workers["1"].calls["report"] is not first
    assert run.members.totals()["generate/steps"] == 3.0


@pytest.mark.parametrize("opened", [False, True], ids=["before they are open", "before they answer"])
def test_a_sick_node_costs_only_its_own_workers(opened: bool, tmp_path: Path, caplog) -> None:
    """Two places are of a node on which workers end, in one way or the other; the rest of the run goes on."""
    run = Run(tmp_path, workers=4)
    for name in ("1", "2"):
        run.open(name, host="well")
    for place in (3, 4):
        run.end_all_of(place, opened=opened)
    told = [record.getMessage() for record in caplog.records if "in a row ended in place" in record.getMessage()]
    assert len(told) == 2
    assert all("; 2 of 4 are open; the last one: on sick: its process ended" in line for line in told)
    assert run.members.places.resting == 2
    counts = run.members.totals()
    assert (counts["cluster/workers_wanted"], counts["cluster/workers_open"]) == (4, 2)
    waits: list[float] = []
    begun = run.now
    while len(waits) < 8:
        run.look()
        for place in (3, 4):
            if run.last(place) not in dict(run.left):
                waits += [run.now - begun] if place == 3 else []
                run.end_all_of(place, opened=opened)
                begun = run.now if place == 3 else begun
    assert all(0.8 * REST_S < wait < 1.1 * MOST_REST_S for wait in waits)
    assert waits == sorted(waits)
    assert waits[-1] > 10 * waits[0]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING and "ended" in record.msg][
        8:
    ] == []
    run.look(MOST_REST_S)
    for place in (3, 4):
        run.open(run.last(place), host="well again")
        run.members.note_answer(run.last(place))
    assert not run.members.places.resting
    assert run.members.totals()["cluster/workers_open"] == 4
    run.look()
    last = run.last(3)
    run.end(last)
    assert run.last(3) != last


def test_a_node_that_is_sick_from_the_start_does_not_end_a_run_whose_workers_load(tmp_path: Path) -> None:
    run = Run(tmp_path, workers=3)
    run.end_all_of(2, opened=False)
    run.end_all_of(3, opened=False)
    run.look(START_S / 2)
    run.open("1")
    assert run.joined == ["1"]


def test_places_that_all_fail_end_the_run(tmp_path: Path) -> None:
    """Those that rest count, and those that are tried again: nobody can be expected to open."""
    run = Run(tmp_path, workers=3)
    run.open("1")
    for place in (2, 3):
        run.end_all_of(place, opened=False)
    run.look(REST_S + 1)
    for _ in range(MOST_STARTS):
        run.end(run.last(1))
    run.end(run.last(2), "no memory", "10.77.0.2")
    with pytest.raises(PipelineError, match=r"workers end before they can begin, 3 in one place; the last one: its"):
        run.end(run.last(1))


def test_a_wait_that_ends_the_run_names_what_ended_last(tmp_path: Path) -> None:
    run = Run(tmp_path, workers=2)
    run.end_all_of(2, opened=False)
    with pytest.raises(PipelineError, match=r"600 s: no room; the last one that ended: on sick: its process ended"):
        run.look(START_S + 1)


@pytest.mark.parametrize("first", [False, True], ids=["another is open", "another may open"])
def test_a_machine_that_cannot_open_the_model_rests(first: bool, tmp_path: Path, caplog) -> None:
    no_memory = NotOpened("node 'generate': out of memory", ExitCode.CONFIG, "gpu2")
    run = Run(tmp_path, workers=2)
    if not first:
        run.open("1")
    run.answer("2", "open", no_memory)
    assert run.left == [("2", "on gpu2: it cannot begin: node 'generate': out of memory")]
    assert "1 worker in a row ended in place 2 before an answer, so the next one starts there in 30 s" in caplog.text
    run.look(REST_S + 1)
    if not first:
        run.end("1")  # its replacement may open
    run.answer("2.2", "open", no_memory)
    with pytest.raises(WorkerFailed, match=r"worker 1.* on gpu1: node 'generate': out of memory") as found:
        run.answer(run.last(1), "open", NotOpened("node 'generate': out of memory", ExitCode.CONFIG, "gpu1"))
    assert found.value.exit_code == ExitCode.CONFIG


def test_every_refusal_and_loss_names_the_machine(tmp_path: Path) -> None:
    run = Run(tmp_path, workers=2)
    run.open("1", host="node1 (10.77.0.1)")
    unlike = r"worker 1 on node1 \(10.77.0.1\) and worker 2 on node2 differ in the program's code: a and b"
    with pytest.raises(PipelineError, match=unlike):
        run.open("2", host="node2", code="b")
    run = Run(tmp_path)
    with pytest.raises(WorkerFailed, match="worker 1 on node1: the driver and a worker differ"):
        run.answer("1", "open", WorkerFailed("the driver and a worker differ", ExitCode.CONFIG, "node1"))
    run = Run(tmp_path)
    run.open("1", host="node1")
    run.look()
    with pytest.raises(WorkerFailed, match="worker 1 on node1: node 'trouble' failed"):
        run.answer("1", "report", WorkerFailed("node 'trouble' failed"))
    run = Run(tmp_path, began_with=refuse)
    with pytest.raises(ConfigError, match="worker 1 on node1: other bits"):
        run.open("1", host="node1")


def refuse(nodes: object) -> None:
    raise ConfigError("other bits")
