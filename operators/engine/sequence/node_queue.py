"""NodeQueue: the sequences of one node, before and after their time in slots; RowHeap: waiting sequences, sorted."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pipeline.api.meter import StageMeter

if TYPE_CHECKING:
    from operators.engine.sequence.sequence import Sequence

Order = tuple[int, float, int, int]
"""Age, priority, expected length and number of a sequence; the lowest comes first."""
_STALE = 64
"""Entries of sequences that have left to tolerate, beyond as many as there are live ones."""


class RowHeap:
    """The waiting sequences of one node, or those of them with a common prefix. One that has left is dropped when it
    reaches the top, or with all others that have left once they are the majority."""

    __slots__ = ("_heap", "count")

    def __init__(self) -> None:
        self._heap: list[tuple[Order, Sequence]] = []
        self.count = 0
        """Sequences that wait."""

    def push(self, order: Order, row: Sequence) -> None:
        """Add the waiting `row`."""
        heapq.heappush(self._heap, (order, row))
        self.count += 1

    def discard(self) -> None:
        """Count one sequence less; its `placement.queued` is already false."""
        self.count -= 1
        if len(self._heap) > 2 * self.count + _STALE:
            self._heap = [entry for entry in self._heap if entry[1].placement.queued]
            heapq.heapify(self._heap)

    def first(self) -> tuple[Order, Sequence] | None:
        """Return the first waiting sequence, with its order."""
        while self._heap and not self._heap[0][1].placement.queued:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def rows(self) -> list[Sequence]:
        """Return all waiting sequences, unordered."""
        return [row for _, row in self._heap if row.placement.queued]


class NodeQueue:
    """The sequences of one node: those waiting for a slot, and those finished until the node collects them.

    Args:
        meter: of the node; counts prompt and completion tokens.
        depth: distance of the node from the source; the deepest is served first, so that rows leave the graph.
        capacity: most sequences in slots, or finished and not collected.
        wake: called from the engine's thread when sequences were finished or the engine failed.

    Attributes:
        heap: waiting sequences.
        finished: sequences that have ended; appended to by the engine's thread, emptied by the node's.
        on_finished: called from the engine's thread with each sequence that ends, before the node can collect it.
        ended: whether no more sequences will be submitted.
        admitted: number of sequences given a slot so far.
        collected: number of finished sequences that the node has taken back.
    """

    def __init__(self, meter: StageMeter, depth: int, capacity: int, wake: Callable[[], None]) -> None:
        self.meter = meter
        self.depth = depth
        self.wake = wake
        self._capacity = capacity
        self.heap = RowHeap()
        self.finished: deque[Sequence] = deque()
        self.on_finished: Callable[[Sequence], None] = lambda row: None
        self.ended = False
        self.admitted = self.collected = 0

    @property
    def waiting(self) -> int:
        """Number of sequences that wait for a slot."""
        return self.heap.count

    def finish(self, row: Sequence) -> None:
        """Return the finished `row` to the node. Called from the engine's thread."""
        self.on_finished(row)
        self.finished.append(row)

    @property
    def admissible(self) -> int:
        """Number of waiting sequences that the node has room to take back."""
        return max(0, min(self.heap.count, self._capacity - (self.admitted - self.collected)))
