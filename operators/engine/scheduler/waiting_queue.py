"""The rows that wait for a slot, and which of them is next.

All contexts of an engine take their rows from one queue. The order among rows of a node is that of `policy.order` (age,
priority, expected length, arrival), but of equal age and priority those that begin like a row whose KV cache is at hand
come before those that must be computed from the start.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from operators.engine.scheduler import policy
from operators.engine.scheduler.radix_tree import PrefixTree
from operators.engine.scheduler.slots import SlotPool
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import PrefixNode, PromptGroup
from operators.engine.sequence.row_heap import Order, RowHeap
from operators.settings.runtime import KERNEL_TOKENS, EngineSettings, OptimiseSettings


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
    rows: RowHeap = field(default_factory=RowHeap)
    """Those rows, in the order above but for prefixes."""

    @property
    def waiting(self) -> int:
        """Rows that wait."""
        return self.rows.count

    @property
    def admissible_rows(self) -> int:
        """Rows that wait and that the node has room to take back."""
        return max(0, min(self.waiting, self.credit()))


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
        self._groups: dict[bytes, PromptGroup] = {}
        self._numbers = itertools.count()

    @property
    def shares(self) -> bool:
        """Whether rows may take from each other what they have computed."""
        return self._optimise.prefix_sharing or self._optimise.sample_sharing

    def share_nothing(self) -> None:
        """Rows that come from now on compute all of their prompts."""
        self._optimise = replace(self._optimise, prefix_sharing=False, sample_sharing=False)

    def add_line(self, line: Line) -> None:
        """Serve the rows of `line` from now on."""
        with self.lock:
            self.lines = sorted([*self.lines, line], key=lambda other: -other.depth)

    def drop_line(self, line: Line) -> None:
        """No longer serve `line`; rows of it that are in slots go on."""
        with self.lock:
            self.lines = [other for other in self.lines if other is not line]
            for row in line.rows.rows():
                self._take_out(row, line)
                self.tree.leave(row)
                self.settle(row)

    def submit(self, line: Line, rows: Iterable[Sequence]) -> None:
        """`rows` of `line` wait from now on."""
        with self.lock:
            for row in rows:
                row.placement.node_queue, row.placement.queued = line, True
                order = policy.order(row, next(self._numbers), longest_first=self._optimise.longest_first)
                line.rows.push(order, row)
                self._remember(row, order)

    @property
    def waiting(self) -> bool:
        """Whether any row waits for a slot."""
        return any(line.waiting for line in self.lines)

    @property
    def admissible(self) -> bool:
        """Whether a row waits whose node has room to take it back."""
        return any(line.waiting and line.credit() > 0 for line in self.lines)

    @property
    def admissible_rows(self) -> int:
        """How many such rows wait."""
        return sum(line.admissible_rows for line in self.lines)

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
                    self._take_out(row, line)
                    return row
        return None

    def _take_out(self, row: Sequence, line: Line) -> None:
        row.placement.queued = False
        line.rows.left()

    def _next(self, line: Line, pool: SlotPool) -> Sequence | None:
        first = line.rows.first()
        if first is None:
            return None
        order, row = first
        if row.placement.node is None or not self.tree.at_hand or _is_at_hand(row.placement.node, pool):
            return row
        near = self._nearest(line, pool, order[:2])
        return row if near is None else near

    def _nearest(self, line: Line, pool: SlotPool, rank: tuple[int, float]) -> Sequence | None:
        """Of the rows that are not behind in age and priority, the one that shares most with a row in `pool`."""
        at_hand = self.tree.at_hand
        for node in itertools.chain.from_iterable(at_hand[depth] for depth in sorted(at_hand, reverse=True)):
            if any(slot.pool is pool for slot in node.holders):
                rows = node.waiting.get(line)
                first = None if rows is None else rows.first()
                if first is not None and first[0][:2] <= rank:
                    return first[1]
        return None

    def _remember(self, row: Sequence, order: Order) -> None:
        if self._optimise.prefix_sharing:
            self.tree.enter(row, order)
        if self._optimise.sample_sharing and len(row.prompt) > 1:
            key = row.prompt.tobytes()
            group = self._groups.get(key)
            if group is None or not group.waiting:
                group = self._groups[key] = PromptGroup(key=key)
            group.waiting += 1
            row.placement.group = group

    def settle(self, row: Sequence) -> None:
        """`row` has its prompt, or will never need it."""
        group, row.placement.group = row.placement.group, None
        if group is not None:
            with self.lock:
                group.waiting -= 1
                if not group.waiting:
                    group.logits = None
                    if self._groups.get(group.key) is group:
                        del self._groups[group.key]


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
