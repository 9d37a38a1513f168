"""PrefixCache: sequences reuse the KV cache that other slots have of their prompt's beginning.

A slot serves others during and after its sequence, until another one needs the slot; no slot is set aside for a cache.
A sequence gets, best first, the free slot whose last prompt shares its prefix, truncated to that; or a copy of the
prefix from another slot (in the per-sequence layout llama.cpp copies whole rows, to be truncated); or it waits for an
earlier sequence that is computing the prefix. With an equal prompt it takes all of it, and draws from the same logits.
A decoder that cannot truncate (`Decoder.partial`) has snapshots instead (snapshots.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from operators.engine.sampling.reduced import serves
from operators.engine.scheduler import policy
from operators.engine.scheduler.radix_tree import BLOCK
from operators.engine.scheduler.slots import Counts, SlotPool
from operators.engine.scheduler.step_batch import Chunking
from operators.engine.scheduler.waiting_queue import WaitingQueue
from operators.engine.sequence import Sequence, State
from operators.engine.sequence.placement import PrefixNode, Slot, SlotSnapshot

MOST_COMPARED = 4
"""Compare at most this many candidates; they share the same radix node."""


@dataclass(frozen=True, slots=True)
class Match:
    """`count` tokens of a prompt that `source` has, or will have when its sequence is computed."""

    source: Slot | SlotSnapshot
    count: int

    @property
    def ready(self) -> bool:
        return self.source.num_cached >= self.count


class PrefixCache:
    """The contents of the slots of one decoder, and the sequences that reuse them.

    Args:
        queue: has the radix tree, which is modified under its lock.
        counts: incremented here: shared_tokens and copies.

    Attributes:
        waiting: sequences in slots that wait for a prefix, and those just admitted.
        snapshot_bytes: of the snapshots that are kept.
    """

    snapshot_bytes = 0

    def __init__(self, pool: SlotPool, queue: WaitingQueue, chunking: Chunking, counts: Counts) -> None:
        self._pool, self._queue, self._chunking, self._counts = pool, queue, chunking, counts
        shape = pool.decoder.shape
        # What is left of a sequence costs nothing where every slot has cells of its own. In the unified layout it would
        # take room that others need, and time of every step; and there cells are shared, not copied.
        self._keeps = shape.per_sequence and queue.shares
        self._least_copy = policy.least_copy(shape)
        self.waiting: dict[Sequence, None] = {}

    def place(self, rows: Seq[Sequence]) -> None:
        """Give each sequence a slot: one whose last prompt shares its beginning, or else the lowest."""
        with self._queue.lock:
            rest = [row for row in rows if not (self._keeps and self._reuse(row))]
            for row in policy.placing(rest):
                self._insert(self.empty_slot(row), row)
                row.update_state()
                if row.state is State.DECODE:
                    self._queue.leave_group(row)
                elif row.placement.node is not None or row.placement.group is not None:
                    self.waiting[row] = None

    def serve(self) -> None:
        """Let waiting sequences take the prefixes that are computed by now."""
        if not self.waiting:
            return
        with self._queue.lock:
            for row in sorted(self.waiting, key=lambda row: row.placement.admission):
                match = self._lookup(row)
                if match is None or match.count < self._least_copy:
                    del self.waiting[row]
                    self._begins(row)
                elif match.ready and self._take(row, match):
                    del self.waiting[row]
                    self._note_shared(row, match.count)
                    self._begins(row)

    def save(self, rows: Seq[Sequence]) -> None:
        """Save what others need of `rows`, which have just been computed: nothing, the slots have it."""

    def forget(self) -> None:
        """Clear the contents of free slots, and the snapshots."""
        for slot in self._pool.slots:
            if slot.row is None:
                self.clear(slot)

    def release(self, slot: Slot) -> None:
        """Keep the computed part of the prompt in `slot`, whose sequence has left; or clear it if it cannot serve
        others."""
        with self._queue.lock:
            if slot.prompt is not None and slot.num_cached < len(slot.prompt):  # nobody computes the rest any more
                slot.prompt = slot.prompt[: slot.num_cached]
                slot.node = self._queue.tree.release(slot, slot.node, slot.num_cached // BLOCK)
                if slot.group is not None:
                    slot.group.owners.discard(slot)
                    slot.group = None
            awaited = slot.group is not None and slot.group.waiting > 0
            if not self._keeps or slot.prompt is None or (len(slot.prompt) < BLOCK and not awaited):
                self.clear(slot)

    def empty_slot(self, row: Sequence) -> Slot:
        """Give `row` the lowest free slot, cleared."""
        slot = self._pool.allocate(row)
        self.clear(slot)
        return slot

    def move(self, row: Sequence, target: Slot) -> None:
        """Move `row` into the free slot `target`; the old copy may serve others."""
        source = row.slot
        target.copy(source, source.num_cached)
        self._pool.release(row)
        self._pool.allocate(row, target)
        with self._queue.lock:
            self._disown(target)
            target.prompt, target.node, target.group = source.prompt, source.node, source.group
            self._queue.own(target)
        self.release(source)

    def clear(self, slot: Slot) -> None:
        if slot.num_cached:
            slot.truncate(0)
        self._disown(slot)

    def _reuse(self, row: Sequence) -> bool:
        """Give `row` a free slot whose last prompt shares its beginning, if there is one."""
        match = self._lookup(row)
        if match is None or not match.ready or not isinstance(slot := match.source, Slot) or slot.row is not None:
            return False
        self._pool.allocate(row, slot)
        slot.truncate(match.count)
        self._disown(slot)
        self._insert(slot, row)
        self._note_shared(row, match.count)
        return True

    def _take(self, row: Sequence, match: Match) -> bool:
        """Put a prefix that is ready into the slot of `row`; return whether that worked."""
        assert isinstance(match.source, Slot)
        row.slot.copy(match.source, match.count)
        self._counts.copies += 1
        return True

    def _begins(self, row: Sequence) -> None:
        """Note that `row` waits no longer, and computes what it has not."""

    def _note_shared(self, row: Sequence, count: int) -> None:
        row.placement.shared_tokens = count
        self._counts.shared_tokens += count
        row.update_state()

    def _lookup(self, row: Sequence) -> Match | None:
        """Find the slot with the longest common prefix with `row`, computed or not, of an earlier sequence or none."""
        if (group := row.placement.group) is not None and len(row.prompt) <= self._chunking.most_shared:
            matches = [Match(owner, len(row.prompt)) for owner in group.owners if self._may_serve(owner, row)]
            # A slot that has the prompt, and whose logits were not kept, is of no more use than any prefix.
            drawable = group.logits is not None and serves(group.logits, row)
            if matches := [match for match in matches if drawable or not match.ready]:
                return _best(matches)
        end = row.placement.node
        for node in () if end is None else end.path():
            if matches := list(itertools.islice(self._matches(node, row), MOST_COMPARED)):
                best = _best(matches)
                return best if best.count >= BLOCK else None
        return None

    def _matches(self, node: PrefixNode, row: Sequence) -> Iterator[Match]:
        for owner in node.owners:
            if owner.prompt is not None and self._may_serve(owner, row):
                yield Match(owner, self._chunking.shared(row.prompt, owner.prompt, node.depth * BLOCK))

    def _may_serve(self, owner: Slot | SlotSnapshot, row: Sequence) -> bool:
        other = owner.row if isinstance(owner, Slot) else None
        return other is None or other.placement.admission < row.placement.admission

    def _insert(self, slot: Slot, row: Sequence) -> None:
        """Enter the prompt of `row`, which has left its node queue, as that of `slot`."""
        slot.prompt, slot.node, slot.group = row.prompt, row.placement.node, row.placement.group
        self._queue.own(slot)
        self._queue.tree.remove_waiting(row)

    def _disown(self, slot: Slot) -> None:
        self._queue.disown(slot)
        slot.prompt = slot.node = slot.group = None


def _best(matches: Seq[Match]) -> Match:
    return max(matches, key=lambda match: policy.match_rank(match.source, match.count))
