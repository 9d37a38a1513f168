"""Laws of the dataflow core, on small graphs."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.api.errors import Interrupted, NodeFailed, StorageError
from pipeline.api.meter import StageMeter
from pipeline.api.records import ChunkEnd
from pipeline.api.runtime import Resources, RunContext
from pipeline.dataflow import stopper
from pipeline.dataflow.executor import Executor
from pipeline.dataflow.graph import Graph, Node
from pipeline.run_dir.chunk_record import ChunkRecord
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.system.atomic_files import rename_shards
from tests.pipeline.ops import Apply, Buffer, Collect, Count, Join, KeepEven, TakeChunks, Twice


class Run:
    """A graph, run in a directory; keeps what was committed."""

    def __init__(self, tmp_path: Path, nodes: Mapping[str, Node], max_open_chunks: int = 8) -> None:
        self.committed: list[int] = []
        self.records: list[ChunkRecord] = []
        self.context = RunContext(tmp_path, Resources(), MetricsTables(tmp_path).get)
        self.executor = Executor(
            Graph(nodes),
            self.context,
            self,
            max_open_chunks=max_open_chunks,
        )
        self.tally = self.executor.tally

    def commit(self, record: ChunkRecord) -> None:
        rename_shards(record.shards)
        self.committed.append(record.chunk)
        self.records.append(record)

    def meter(self, name: str) -> StageMeter:
        return next(m for m in self.executor.meters if m.name == name)


def test_fan_out_filter_and_fan_in_keep_every_row(tmp_path: Path) -> None:
    sink, join = Collect(), Join()
    nodes = {
        "count": Node(Count(25)),
        "even": Node(KeepEven(), ("count",)),
        "twice": Node(Twice(), ("count",)),
        "join": Node(join, ("even", "twice"), capacity_rows=2),
        "sink": Node(sink, ("join",), capacity_rows=1),
    }
    run = Run(tmp_path, nodes)
    run.executor.run()
    assert sorted(sink.column("x")) == sorted([*range(25), *range(25), *range(0, 25, 2)])
    assert sink.ends == run.committed == [0, 1, 2]
    assert join.ports == {0, 1}
    assert run.tally.by_reason == {("even", "filtered", "odd"): 12}


def test_fan_out_shares_the_buffers(tmp_path: Path) -> None:
    a, b = Collect(), Collect()
    Run(tmp_path, {"count": Node(Count(5)), "a": Node(a, ("count",)), "b": Node(b, ("count",))}).executor.run()
    assert [x.data.column("x").buffers()[1].address for x in a.batches] == [
        x.data.column("x").buffers()[1].address for x in b.batches
    ]


def test_a_failing_node_is_named_and_cancels_all(tmp_path: Path) -> None:
    source = Count(100_000)
    nodes = {
        "count": Node(source),
        "fail": Node(Apply(lambda x: 1 // (x - 35)), ("count",)),
        "sink": Node(Collect(), ("fail",)),
    }
    run = Run(tmp_path, nodes)
    with pytest.raises(NodeFailed, match=r"node 'fail' failed: ZeroDivisionError"):
        run.executor.run()
    assert source.sent < 100_000
    assert run.committed in ([], [0], [0, 1], [0, 1, 2])


def test_a_failure_to_commit_is_no_nodes(tmp_path: Path) -> None:
    class Refuses(Run):
        def commit(self, record: ChunkRecord) -> None:
            raise StorageError("state.sqlite cannot be written", tmp_path, full=True)

    run = Refuses(tmp_path, {"count": Node(Count(55)), "sink": Node(Collect(), ("count",))})
    with pytest.raises(StorageError, match=r"^state.sqlite cannot be written$"):
        run.executor.run()


def test_a_node_that_has_left_adds_nothing_to_the_chunks_that_it_has_not_ended(tmp_path: Path) -> None:
    nodes = {
        "count": Node(Count(55)),
        "even": Node(KeepEven(), ("count",)),
        "take": Node(TakeChunks(2), ("even",)),
        "some": Node(Collect(), ("take",)),
        "every": Node(Collect(), ("count",)),
    }
    run = Run(tmp_path, nodes)
    run.executor.run()
    for record in run.records:
        assert {"count", "every"} <= set(record.counts)
        assert ("take" in record.counts) == ("some" in record.counts) == (record.chunk < 2)
        for counts in record.counts.values():
            assert counts.rows_in in (0, 10, 5)
    assert run.committed == list(range(6))


def test_every_part_of_a_chunk_is_there_when_it_is_committed(tmp_path: Path) -> None:
    nodes = {
        "count": Node(Count(500)),
        "even": Node(KeepEven(), ("count",)),
        "apply": Node(Apply(abs), ("even",)),
        "a": Node(Collect(), ("apply",)),
        "b": Node(Collect(), ("count",)),
    }
    run = Run(tmp_path, nodes)
    run.executor.run()
    assert [set(record.counts) for record in run.records] == [set(nodes)] * 50
    assert [record.rejects for record in run.records] == [{("even", "filtered", "odd"): 5}] * 50
    assert [len(record.shards) for record in run.records] == [1] * 50


@pytest.mark.parametrize("max_open_chunks", [1, 2, 8])
def test_a_leaving_reader_ends_the_run_also_where_nothing_moves_any_more(tmp_path: Path, max_open_chunks: int) -> None:
    """The source waits for a commit that will not come, and the nodes behind it for rows."""
    source, sink = Count(1_000_000), Collect()
    nodes = {
        "count": Node(source),
        "even": Node(KeepEven(), ("count",)),
        "buffer": Node(Buffer(), ("even",)),
        "take": Node(TakeChunks(3), ("buffer",)),
        "sink": Node(sink, ("take",)),
    }
    run = Run(tmp_path, nodes, max_open_chunks)
    run.executor.run()
    assert sorted(sink.column("x")) == list(range(0, 30, 2))
    assert run.committed == [0, 1, 2]
    assert source.sent < 1_000_000


def test_a_straggler_in_the_first_chunk_holds_the_source_at_the_window(tmp_path: Path) -> None:
    release, ahead = threading.Event(), list[int]()
    source = Count(1000)

    class Hold(TakeChunks):
        """Keeps chunk 0 open until the source can go no further, as one long generation would."""

        def run(self, inbox):
            held = []
            for item in inbox:
                if not release.is_set():
                    held.append(item)
                    if isinstance(item, ChunkEnd) and item.chunk == 2:  # the last that the window lets through
                        while source.sent < 1000 and run.meter("count").clock.seconds()["blocked_s"] == 0:
                            time.sleep(0.001)
                        ahead.append(source.sent)
                        release.set()
                        yield from held
                else:
                    yield item

    sink = Collect()
    nodes = {"count": Node(source), "hold": Node(Hold(0), ("count",)), "sink": Node(sink, ("hold",))}
    run = Run(tmp_path, nodes, max_open_chunks=3)
    run.executor.run()
    assert sorted(sink.column("x")) == list(range(1000))
    assert ahead[0] <= 30 + source.batch_rows  # the batch that waits for its chunk to begin is made already


class Stuck(Collect):
    """Computes until it is cut off, whatever it is told."""

    def open(self, runtime):
        self.cut_off = threading.Event()
        runtime.when_stuck(self.cut_off.set)

    def process(self, batch):
        self.cut_off.wait()
        return super().process(batch)


@pytest.mark.parametrize("why", [Interrupted, NodeFailed, StorageError])
def test_what_computes_on_is_cut_off_however_a_run_was_stopped(tmp_path: Path, monkeypatch, why) -> None:
    """By a signal, by another node, or because it cannot be recorded."""
    monkeypatch.setattr(stopper, "GRACE_S", 0.01)
    sink, other = Stuck(), Apply(lambda x: 1 // (x - 35) if why is NodeFailed else x)
    nodes = {"count": Node(Count(100)), "sink": Node(sink, ("count",)), "apply": Node(other, ("count",))}
    run = Run(tmp_path, {**nodes, "end": Node(Collect(), ("apply",))})

    def tick() -> None:
        if why is StorageError:
            raise StorageError("no room", tmp_path)

    if why is Interrupted:
        threading.Timer(0.05, run.executor.interrupt).start()
    with pytest.raises(why):
        run.executor.run(tick)
    assert sink.cut_off.is_set()
    assert run.committed == []


class Closes(Collect):
    """Counts how often it is closed; fails at `at`."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at, self.closed = at, 0

    def open(self, runtime):
        super().open(runtime)
        if self.at == "open":
            raise RuntimeError("half way")

    def close(self):
        self.closed += 1
        if self.at == "close":
            raise SystemExit(0)


@pytest.mark.parametrize("at", ["open", "close", "never"])
def test_every_operator_is_closed_once_and_closing_changes_nothing(tmp_path: Path, at) -> None:
    first, sink = Closes("close"), Closes(at)
    nodes = {"count": Node(Count(25)), "first": Node(first, ("count",)), "sink": Node(sink, ("count",))}
    run = Run(tmp_path, nodes)
    if at == "open":
        with pytest.raises(NodeFailed, match="node 'sink' failed: RuntimeError: half way"):
            run.executor.run()
    else:
        run.executor.run()
        assert run.committed == [0, 1, 2]
    assert (first.closed, sink.closed) == (1, 1)


def test_where_no_thread_begins_any_more_those_that_run_end_first(tmp_path: Path, monkeypatch) -> None:
    begin, began = threading.Thread.start, list[threading.Thread]()

    def start(thread: threading.Thread) -> None:
        if thread.name == "node-sink":
            raise RuntimeError("can't start new thread")
        began.append(thread)
        begin(thread)

    class Asks(Apply):
        def close(self):
            assert not any(thread.is_alive() for thread in began if thread.name.startswith("node-"))
            asked.append(self)

    asked: list[Asks] = []
    nodes = {"count": Node(Count(25)), "apply": Node(Asks(abs), ("count",)), "sink": Node(Collect(), ("apply",))}
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start"):
        Run(tmp_path, nodes).executor.run()
    assert asked


def test_nothing_is_cut_off_in_a_run_that_ends_in_time(tmp_path: Path) -> None:
    sink = Stuck()
    run = Run(tmp_path, {"count": Node(Count(100)), "sink": Node(sink, ("count",))})

    def stop() -> None:
        run.executor.interrupt()
        run.context.cancelled.wait()
        ended.set()

    ended = threading.Event()
    sink.process = lambda batch: (ended.wait(), ())[1]  # type: ignore[method-assign]
    threading.Timer(0.05, stop).start()
    with pytest.raises(Interrupted):
        run.executor.run()
    assert not sink.cut_off.is_set()
