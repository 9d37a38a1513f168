"""The window of open chunks, and when they are committed."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from pipeline.api.errors import Released
from pipeline.api.meter import RowCounts, StageMeter
from pipeline.api.records import ChunkEnd
from pipeline.dataflow.commit import ChunkWindow, Committer
from pipeline.run_dir.chunk_record import ChunkRecord, OperatorState


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
        self.committer = Committer(sinks, self, ChunkWindow(9), stopper)  # type: ignore[arg-type]

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
