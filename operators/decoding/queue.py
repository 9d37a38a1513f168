"""The rows that wait for a slot, and which of them is next.

All contexts of an engine take their rows from one queue. The order among rows of a node:

1. age: rows of two neighbouring chunks before those of later ones, so that nothing below keeps a chunk from its end;
2. priority, the higher first;
3. prefix: rows that begin like a row whose KV cache is at hand, before those that must be computed from the start;
4. expected length, the longest first: what starts last should end soon, or a few long rows decode alone at the end;
5. the order of arrival (BatchByLength sorts by prompt length).
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from operators.decoding.prompts import PrefixNode, PrefixTree, SamePrompt
from operators.decoding.sequence import Sequence, State
from operators.decoding.slots import SlotPool
from operators.engine_settings import KERNEL_TOKENS, EngineSettings, OptimiseSettings

CHUNKS_OF_ONE_AGE = 2
Order = tuple[int, float, int, int]


@dataclass(eq=False)
class Line:
    """The rows of one node that wait for a slot.

    Args:
        depth: distance of the node from the source; the deepest line is served first, so that rows leave the graph.
        credit: rows that the node can still take back when they are finished.
    """

    depth: int
    credit: Callable[[], int]
    ended: bool = False
    admitted: int = 0
    """Rows given a slot so far."""
    returned: int = 0
    """Finished rows that the node has taken back; written by the node's thread."""
    waiting: int = 0
    """Rows that wait."""
    heap: list[tuple[Order, Sequence]] = field(default_factory=list)
    """May hold rows that no longer wait."""

    def first(self) -> tuple[Order, Sequence] | None:
        """The first that waits, in the order above but for prefixes."""
        while self.heap:
            if self.heap[0][1].state is State.WAITING and self.heap[0][1].line is self:
                return self.heap[0]
            heapq.heappop(self.heap)
        return None


class Queue:
    """The lines of all nodes. Safe to use from several threads.

    Args:
        optimise: what may be shared and sorted.
        kernel_tokens: see `PrefixTree`.
    """

    def __init__(self, optimise: OptimiseSettings, kernel_tokens: int) -> None:
        self.lock = threading.RLock()
        self.tree = PrefixTree(kernel_tokens)
        self.lines: list[Line] = []
        self._optimise = optimise
        self._same: dict[bytes, SamePrompt] = {}
        self._numbers = itertools.count()

    @property
    def shares(self) -> bool:
        """Whether rows may take from each other what they have computed."""
        return self._optimise.prefix_sharing or self._optimise.sample_sharing

    def add_line(self, line: Line) -> None:
        """Serve the rows of `line` from now on."""
        with self.lock:
            self.lines = sorted([*self.lines, line], key=lambda other: -other.depth)

    def drop_line(self, line: Line) -> None:
        """No longer serve `line`; rows of it that are in slots go on."""
        with self.lock:
            self.lines = [other for other in self.lines if other is not line]
            for _, row in line.heap:
                if row.state is State.WAITING and row.line is line:
                    self._forget(row)
            line.heap.clear()
            line.waiting = 0

    def submit(self, line: Line, rows: Iterable[Sequence]) -> None:
        """`rows` of `line` wait from now on."""
        with self.lock:
            for row in rows:
                row.line = line
                heapq.heappush(line.heap, (self._order(row), row))
                line.waiting += 1
                self._remember(row)

    @property
    def waiting(self) -> bool:
        """Whether any row waits for a slot."""
        return any(line.waiting for line in self.lines)

    @property
    def admissible(self) -> bool:
        """Whether a row waits whose node has room to take it back."""
        return any(line.waiting and line.credit() > 0 for line in self.lines)

    @property
    def ended(self) -> bool:
        """Whether no more rows will come."""
        return all(line.ended for line in self.lines)

    def take(self, pool: SlotPool, fits: Callable[[Sequence], bool]) -> Sequence | None:
        """The next row for `pool`, if it `fits`."""
        with self.lock:
            for line in self.lines:
                if line.waiting and line.credit() > 0:
                    row = self._next(line, pool)
                    if row is None or not fits(row):
                        return None
                    line.admitted += 1
                    line.waiting -= 1
                    row.line = None
                    return row
        return None

    def _order(self, row: Sequence) -> Order:
        expected = row.max_tokens if self._optimise.longest_first else 0
        return (row.chunk // CHUNKS_OF_ONE_AGE, -row.priority, -expected, next(self._numbers))

    def _next(self, line: Line, pool: SlotPool) -> Sequence | None:
        first = line.first()
        if first is None:
            return None
        order, row = first
        if row.prefix is None or not self.tree.at_hand or _is_at_hand(row.prefix, pool):
            return row
        near = self._nearest(line, pool, order[:2])
        return row if near is None else near

    def _nearest(self, line: Line, pool: SlotPool, rank: tuple[int, float]) -> Sequence | None:
        """Of the rows that are not behind in age and priority, the one that shares most with a row in `pool`."""
        for node in sorted(self.tree.at_hand, key=lambda node: -node.depth):
            if any(slot.pool is pool for slot in node.holders):
                rows = [row for row in node.waiting if row.line is line and self._order_of(row) <= rank]
                if rows:
                    return min(rows, key=lambda row: -row.max_tokens if self._optimise.longest_first else 0)
        return None

    def _order_of(self, row: Sequence) -> tuple[int, float]:
        return (row.chunk // CHUNKS_OF_ONE_AGE, -row.priority)

    def _remember(self, row: Sequence) -> None:
        if self._optimise.prefix_sharing:
            self.tree.enter(row)
        if self._optimise.sample_sharing and len(row.prompt) > 1:
            key = row.prompt.tobytes()
            same = self._same.get(key)
            if same is None or not same.waiting:
                same = self._same[key] = SamePrompt(key=key)
            same.waiting += 1
            row.same = same

    def _forget(self, row: Sequence) -> None:
        self.tree.leave(row)
        self.settle(row)

    def settle(self, row: Sequence) -> None:
        """`row` has its prompt, or will never need it."""
        same, row.same = row.same, None
        if same is not None:
            with self.lock:
                same.waiting -= 1
                if not same.waiting:
                    same.logits = None
                    if self._same.get(same.key) is same:
                        del self._same[same.key]


def queue_for(settings: EngineSettings) -> Queue:
    """The queue of an engine with these settings."""
    return Queue(settings.optimise, KERNEL_TOKENS if settings.deterministic else 0)


def _is_at_hand(end: PrefixNode | None, pool: SlotPool) -> bool:
    """Whether some slot of `pool` begins with the first block of a prompt at least, or the prompt has none."""
    node = end
    while node is not None and node.parent is not None:
        if any(slot.pool is pool for slot in node.holders):
            return True
        node = node.parent
    return False
