"""The window of open chunks."""

from __future__ import annotations

import threading

import pytest

from pipeline.api.meter import StageMeter
from pipeline.api.records import ChunkEnd
from pipeline.dataflow.commit import ChunkWindow, Committer


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


def test_nothing_after_the_last_chunk_is_committed_whoever_has_ended_it_before():
    committed: list[int] = []
    told: list[str] = []
    committer = Committer(
        ["a", "b"], "rejects", lambda end, _: committed.append(end.chunk), ChunkWindow(9), lambda: told.append("last")
    )
    for chunk in range(3):
        committer.chunk_done("a", ChunkEnd(chunk, 1), [])
    committer.stop_after(1)
    committer.stop_after(2)  # too late: the first call counts
    for chunk in range(3):
        committer.chunk_done("rejects", ChunkEnd(chunk, 1), [])
        committer.chunk_done("b", ChunkEnd(chunk, 1), [])
    committer.sink_left("b")
    assert committed == [0, 1]
    assert told == ["last"]


@pytest.mark.parametrize(("chunks", "last"), [(2, 1), (0, -1)])
def test_a_last_chunk_may_be_named_when_it_is_committed_already(chunks, last):
    committed: list[int] = []
    told: list[str] = []
    committer = Committer(
        ["a"], "rejects", lambda end, _: committed.append(end.chunk), ChunkWindow(9), lambda: told.append("last")
    )
    for chunk in range(chunks):
        committer.chunk_done("a", ChunkEnd(chunk, 1), [])
        committer.chunk_done("rejects", ChunkEnd(chunk, 1), [])
    committer.stop_after(last)
    committer.chunk_done("a", ChunkEnd(chunks, 1), [])
    committer.chunk_done("rejects", ChunkEnd(chunks, 1), [])
    assert committed == list(range(chunks))
    assert told == ["last"]
