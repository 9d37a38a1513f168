"""The end of a chunk: the committer has the part of the node before the reject writer and the readers have the end."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.api.meter import RowCounts, StageMeter
from pipeline.api.records import ChunkEnd, Reject, Rejects
from pipeline.dataflow import graph
from pipeline.dataflow.inbox import NodeInbox
from pipeline.dataflow.outbox import ChunkOrderError, Outbox
from pipeline.run_dir.chunk_record import OperatorState
from tests.pipeline.dataflow.test_inbox import rows
from tests.pipeline.stateful_ops import RunningSum


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
