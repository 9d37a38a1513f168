"""Rows take from other slots what those have of their prompt, instead of computing it.

A slot serves others while its row lives and after it has left, until another row needs the slot: nothing is set aside
for a cache. Three ways, best first:

- a row is given the free slot whose last prompt begins like its own, and what is there is cut behind the common part;
- it is copied from another slot (in the per-sequence layout llama.cpp copies whole rows; the rest is cut off again);
- a row before it computes that part right now: it waits.

A row with the very same prompt takes all of it, and draws from the logits that the first one drew from. Nothing is
shared where what is kept of a row cannot be cut (`Decoder.partial`): its state is past the common tokens already.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from operators.engine.backend.interface import Decoder
from operators.engine.scheduler.prefill import Cut
from operators.engine.scheduler.radix_tree import BLOCK
from operators.engine.scheduler.slots import SlotPool
from operators.engine.scheduler.waiting_queue import Queue
from operators.engine.sequence import Sequence, State
from operators.engine.sequence.placement import PrefixNode, Slot

CELLS_A_TOKEN = 200
"""To copy a row's stream takes as long as to compute one token of a prompt for so many of its cells, used or not: 450
where prompts are read slowly, some 170 where they are read fast (docs/performance.md)."""
ENOUGH = 4
"""So many of those that begin alike are compared: they differ by less than a block of the tree."""


@dataclass
class Counts:
    """What was done besides computing, since the engine began."""

    shared_tokens: int = 0
    """Prompt tokens that were not computed because another row had them."""
    copies: int = 0
    """Rows copied from slot to slot to share a prefix."""
    moves: int = 0
    """Rows moved to close a hole."""
    preempted_saved: int = 0
    """Rows that gave up their slot and went on from what they had."""
    preempted_anew: int = 0
    """Rows that gave up their slot and computed their tokens again."""
    failed_calls: int = 0
    """Calls that the backend refused; their rows were computed in smaller ones."""


@dataclass(frozen=True, slots=True)
class Source:
    """`count` tokens of a prompt that `slot` has or is about to have."""

    slot: Slot
    count: int

    @property
    def ready(self) -> bool:
        """Whether it has them."""
        return self.slot.ready >= self.count


class Sharing:
    """Keeps what the slots of one decoder hold, and lets rows take it.

    Args:
        decoder: copies and forgets.
        queue: has the tree of prefixes; what is said of it here is said under its lock.
        pool: the slots.
        cut: where a prompt may be cut.
        counts: counted here: shared_tokens and copies.
    """

    def __init__(self, decoder: Decoder, queue: Queue, pool: SlotPool, cut: Cut, counts: Counts) -> None:
        self._decoder = decoder
        self._queue = queue
        self._pool = pool
        self._cut = cut
        self._counts = counts
        if not decoder.partial:
            queue.share_nothing()
        # What is left of a row costs nothing where every slot has cells of its own. In the unified layout it would take
        # room that others need, and time of every step.
        self._keeps = decoder.shape.per_sequence and queue.shares
        # In the unified layout cells are shared, not copied.
        self._worth_a_copy = decoder.shape.max_sequence_tokens // CELLS_A_TOKEN if decoder.shape.per_sequence else 0
        self._fresh: dict[Sequence, None] = {}
        self._drawing: list[Sequence] = []

    def place(self, rows: Seq[Sequence]) -> None:
        """Give each row a slot: one whose last prompt begins like its own, or else the lowest; like lengths side by
        side, so that they are computed together."""
        with self._queue.lock:
            rest = [row for row in rows if not (self._keeps and self._reuse(row))]
            for row in sorted(rest, key=lambda row: -len(row.prompt)):
                slot = self._pool.allocate(row)
                self.clear(slot)
                slot.dirty = True
                row.settle()
                self._hold(slot, row)
                if row.state is State.DECODE:
                    self._queue.settle(row)
                elif row.placement.node is not None or row.placement.group is not None:
                    self._fresh[row] = None

    def begin(self) -> list[Sequence]:
        """Let rows that have not begun take what others have by now; returns those that have all of their prompt."""
        if self._fresh:
            with self._queue.lock:
                for row in sorted(self._fresh, key=lambda row: row.placement.admission):
                    source = self._source(row)
                    if source is None or source.count < self._worth_a_copy:
                        del self._fresh[row]
                    elif source.ready:
                        del self._fresh[row]
                        self._copy(source, row)
        drawing, self._drawing = self._drawing, []
        return drawing

    def follows(self, row: Sequence) -> bool:
        """Whether `row` waits for what another one computes."""
        return row in self._fresh

    def forget(self, row: Sequence) -> None:
        """`row` leaves its slot: it no longer waits for what others compute."""
        self._fresh.pop(row, None)

    def vacate(self, slot: Slot, row: Sequence) -> None:
        """`row` has left `slot`; what is there of its prompt may serve others."""
        with self._queue.lock:
            if slot.prompt is not None and row.n_past < len(slot.prompt):  # nobody computes the rest any more
                slot.prompt = slot.prompt[: row.n_past]
                slot.end = self._queue.tree.drop(slot, slot.end, row.n_past // BLOCK)
                if slot.group is not None:
                    slot.group.holders.discard(slot)
                    slot.group = None
            awaited = slot.group is not None and slot.group.waiting > 0
            if not self._keeps or (slot.ready < BLOCK and not awaited):
                self.clear(slot)

    def vacant_slot(self, row: Sequence) -> Slot:
        """An empty slot for a row that brings its own state."""
        slot = self._pool.allocate(row)
        self.clear(slot)
        slot.dirty = True
        return slot

    def moved(self, source: Slot, target: Slot) -> None:
        """The row in `source` is in `target` now; what was copied is still in `source`."""
        with self._queue.lock:
            self._release(target)
            target.prompt, target.end, target.group = source.prompt, source.end, source.group
            target.dirty = True
            if target.end is not None:
                self._queue.tree.hold(target, target.end)
            if target.group is not None:
                target.group.holders.add(target)
        self.vacate(source, self._pool.row_of(target))

    def clear(self, slot: Slot) -> None:
        """Forget what is in `slot`."""
        if slot.dirty:
            self._decoder.truncate(slot.index, 0)
            slot.dirty = False
        self._release(slot)

    def _reuse(self, row: Sequence) -> bool:
        """Give `row` a free slot whose last prompt begins like its own, if there is one."""
        source = self._source(row)
        if source is None or not source.ready or source.slot.row is not None:
            return False
        slot = self._pool.allocate(row, source.slot)
        self._decoder.truncate(slot.index, source.count)
        self._release(slot)
        self._hold(slot, row)
        self._take(row, source.count)
        return True

    def _copy(self, source: Source, row: Sequence) -> None:
        self._decoder.copy(source.slot.index, row.slot, source.count)
        self._counts.copies += 1
        self._take(row, source.count)

    def _take(self, row: Sequence, count: int) -> None:
        row.n_past = row.placement.shared_tokens = count
        self._counts.shared_tokens += count
        row.settle()
        if row.placement.group is not None and count == len(row.prompt):
            self._drawing.append(row)

    def _source(self, row: Sequence) -> Source | None:
        """Who has most of the prompt of `row`, or will have it: of rows in slots only those admitted before it."""
        if row.placement.group is not None:
            whole = len(row.prompt)
            twins = [Source(slot, whole) for slot in row.placement.group.holders if self._may_serve(slot, row)]
            # A twin that has its prompt, and whose logits were not kept, is of no more use than any prefix.
            useful = [twin for twin in twins if row.placement.group.logits is not None or not twin.ready]
            if useful:
                return max(useful, key=lambda twin: (twin.ready, -twin.slot.index))
        node = row.placement.node
        while node is not None and node.depth:
            found = list(itertools.islice(self._sources(node, row), ENOUGH))
            if found:
                best = max(found, key=lambda source: (source.count, source.ready, -source.slot.index))
                return best if best.count >= BLOCK else None
            node = node.parent
        return None

    def _sources(self, node: PrefixNode, row: Sequence) -> Iterator[Source]:
        for slot in node.holders:
            if slot.prompt is not None and self._may_serve(slot, row):
                yield Source(slot, self._cut.shared(row, slot.prompt, node.depth * BLOCK))

    def _may_serve(self, slot: Slot, row: Sequence) -> bool:
        return slot.pool is self._pool and (slot.row is None or slot.row.placement.admission < row.placement.admission)

    def _hold(self, slot: Slot, row: Sequence) -> None:
        """`slot` has, or will have, the prompt of `row`."""
        slot.prompt = row.prompt
        slot.end = row.placement.node
        slot.group = row.placement.group
        if slot.end is not None:
            self._queue.tree.hold(slot, slot.end)
            self._queue.tree.leave(row)
        if slot.group is not None:
            slot.group.holders.add(slot)

    def _release(self, slot: Slot) -> None:
        """`slot` no longer has what it had."""
        with self._queue.lock:  # other contexts look through the holders
            self._queue.tree.drop(slot, slot.end)
            if slot.group is not None:
                slot.group.holders.discard(slot)
        slot.prompt = slot.end = slot.group = None
