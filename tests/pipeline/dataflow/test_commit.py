"""The window of open chunks, when they are committed, and what a node tells of a chunk's end, and whom first."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.api.errors import Released
from pipeline.api.meter import RowCounts, StageMeter
from pipeline.api.records import ChunkEnd, Reject, Rejects
from pipeline.dataflow import graph
from pipeline.dataflow.commit import ChunkWindow, Committer
from pipeline.dataflow.inbox import NodeInbox
from pipeline.dataflow.outbox import ChunkOrderError, Outbox
from pipeline.dataflow.reject_writer import RejectTally
from pipeline.run_dir.chunk_record import ChunkRecord, OperatorState
from tests.pipeline.dataflow.test_inbox import rows
from tests.pipeline.stateful_ops import RunningSum


def test_a_chunk_is_held_back_until_an_earlier_one_is_committed():
    window, meter, began = ChunkWindow(2), StageMeter("source"), threading.Event()
    window.begin(0, meter)
    window.begin(1, meter)

    def third() -> None:
        window.begin(2, meter)
        began.set()

    thread = threading.Thread(target=third)
    thread.start()
    assert not began.wait(0.1)
    window.committed(0)
    assert began.wait(10)
    thread.join()


def test_no_chunk_begins_behind_the_last_one():
    window = ChunkWindow(2, first=3, last=4)
    window.begin(4, StageMeter("source"))
    with pytest.raises(Released):
        window.begin(5, StageMeter("source"))


class Commits:
    """A committer and what it has committed. `told`: how often it has said that the last chunk is committed."""

    def __init__(self, *sinks: str) -> None:
        self.records: list[ChunkRecord] = []
        self.told = 0
        stopper = SimpleNamespace(abandoned=threading.Event(), stop=self._tell)
        self.committer = Committer(sinks, self, ChunkWindow(9), stopper, RejectTally())  # type: ignore[arg-type]

    def _tell(self, why: None) -> None:
        self.told += 1

    def commit(self, record: ChunkRecord) -> None:
        self.records.append(record)

    def end(self, node: str, *chunks: int) -> None:
        for chunk in chunks:
            self.committer.add(node, ChunkEnd(chunk, 1), RowCounts(rows_in=1, rows_out=1))

    @property
    def chunks(self) -> list[int]:
        return [record.chunk for record in self.records]


def test_a_chunk_is_committed_when_every_sink_and_the_reject_writer_have_ended_it():
    commits = Commits("a", "b")
    for node in ("source", "a", "b"):
        commits.end(node, 0, 1)
    assert commits.chunks == []
    commits.end("rejects", 0)
    assert commits.chunks == [0]


def test_chunks_are_committed_in_order():
    commits = Commits("a", "b")
    commits.end("rejects", 0, 1)
    commits.end("a", 0, 1)
    commits.end("b", 1)
    assert commits.chunks == []
    commits.end("b", 0)
    assert commits.chunks == [0, 1]


def test_a_sink_that_has_left_is_not_waited_for_unless_it_was_the_last():
    commits = Commits("a", "b")
    commits.end("rejects", 0, 1)
    commits.end("a", 0)
    commits.committer.leave("b")
    assert commits.chunks == [0]
    commits.committer.leave("a")
    assert commits.chunks == [0]


def test_a_record_has_the_parts_of_those_nodes_that_have_ended_the_chunk():
    commits = Commits("a")
    commits.end("left", 0)
    state = OperatorState(b"7")
    for chunk in range(2):
        commits.committer.add("counts", ChunkEnd(chunk, 1), RowCounts(3, 0, 1, 2), state=state)
        commits.end("rejects", chunk)
        commits.end("a", chunk)
    first, second = commits.records
    assert set(first.counts) == {"left", "counts", "a"}
    assert set(second.counts) == {"counts", "a"}
    assert second.states == {"counts": state}
    assert commits.committer.counts["counts"] == RowCounts(6, 0, 2, 4)


def test_nothing_after_the_last_chunk_is_committed_whoever_has_ended_it_before():
    commits = Commits("a", "b")
    commits.end("a", 0, 1, 2)
    commits.committer.stop_after(1)
    commits.committer.stop_after(2)  # too late: the first call counts
    commits.end("rejects", 0, 1, 2)
    commits.end("b", 0, 1, 2)
    commits.committer.leave("b")
    assert commits.chunks == [0, 1]
    assert commits.told == 1


@pytest.mark.parametrize(("chunks", "last"), [(2, 1), (0, -1)])
def test_a_last_chunk_may_be_named_when_it_is_committed_already(chunks, last):
    commits = Commits("a")
    commits.end("a", *range(chunks))
    commits.end("rejects", *range(chunks))
    commits.committer.stop_after(last)
    commits.end("a", chunks)
    commits.end("rejects", chunks)
    assert commits.chunks == list(range(chunks))
    assert commits.told == 1


class Node:
    """An outbox, the inboxes behind it, and in place of a committer itself."""

    def __init__(self) -> None:
        self.reader, self.rejects = NodeInbox(StageMeter("reader")), NodeInbox(StageMeter("rejects"))
        edges = [self.reader.connect(8)], self.rejects.connect(8)
        self.put = Outbox("node", graph.Node(RunningSum()), StageMeter("node"), *edges, self).put  # type: ignore[arg-type]
        self.parts: list[tuple[Any, ...]] = []

    def add(self, *part: Any) -> None:
        assert self.reader.poll() is None
        assert self.rejects.poll() is None
        self.parts.append(part)


def test_the_committer_has_the_part_of_a_node_before_anyone_has_the_end():
    node = Node()
    for end in (ChunkEnd(0, 3), ChunkEnd(1, 3)):
        node.put(end)
        assert (node.reader.poll(), node.rejects.poll()) == (end, end)
    assert [part[1] for part in node.parts] == [ChunkEnd(0, 3), ChunkEnd(1, 3)]


def test_a_part_has_the_rows_of_its_chunk_and_the_state():
    node = Node()
    node.put(rows(0, 1, 2))
    node.put(rows(1, 3))
    node.put(Rejects(0, (Reject(7, "odd"),)))
    assert node.reader.poll() == rows(0, 1, 2)
    assert node.reader.poll() == rows(1, 3)
    assert node.rejects.poll() == Rejects(0, (Reject(7, "odd"),), "node")
    node.put(ChunkEnd(0, 3))
    assert node.parts == [("node", ChunkEnd(0, 3), RowCounts(rejected=1, rows_out=2), [], OperatorState(b"0"))]


@pytest.mark.parametrize("late", [rows(0, 1), ChunkEnd(0, 1), ChunkEnd(2, 1)])
def test_chunks_end_once_and_in_order(late):
    node = Node()
    node.put(ChunkEnd(0, 1))
    with pytest.raises(ChunkOrderError):
        node.put(late)
