"""RowHeap: rows that wait, in their order."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from operators.engine.sequence.sequence import Sequence

Order = tuple[int, float, int, int]
"""Age, priority, expected length and number of a row; what is least comes first."""
_STALE = 64
"""So many rows that have left may stay, and as many as there are others."""


class RowHeap:
    """The rows of one line, or those of them that begin alike. One that has left is dropped when it comes to the top,
    or with all others that have, when they are the most."""

    __slots__ = ("_heap", "count")

    def __init__(self) -> None:
        self._heap: list[tuple[Order, Sequence]] = []
        self.count = 0
        """Rows that wait."""

    def push(self, order: Order, row: Sequence) -> None:
        """`row` waits."""
        heapq.heappush(self._heap, (order, row))
        self.count += 1

    def left(self) -> None:
        """One of the rows no longer waits."""
        self.count -= 1
        if len(self._heap) > 2 * self.count + _STALE:
            self._heap = [entry for entry in self._heap if entry[1].placement.queued]
            heapq.heapify(self._heap)

    def first(self) -> tuple[Order, Sequence] | None:
        """The first of them."""
        while self._heap and not self._heap[0][1].placement.queued:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def rows(self) -> list[Sequence]:
        """All of them, in no order."""
        return [row for _, row in self._heap if row.placement.queued]
