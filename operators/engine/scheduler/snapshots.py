"""SnapshotCache: sequences of recurrent and hybrid models reuse the states that others had at the end of a prefix.

A recurrent state has no past: it stands after the last token that was computed, and can neither be truncated nor copied
in part. Nor can a row of which only a window is kept (runtime.window_cache=small). So a prefix can be reused only from
a state at its very end. Servers keep one every so many tokens and guess; here it is known which prompts wait and where
they branch. A sequence that computes a prompt stops where enough others branch off, its state is saved, and they begin
from it. The state after a whole prompt is saved if equal prompts wait.

Snapshots stay, the least recently used go first, so sequences that come later find them too, by the radix tree. They
are restored instead of handed from slot to slot by the backend: that costs a copy of the prefix either way, and this
works whichever sequence has moved on.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator
from collections.abc import Sequence as Seq

from operators.engine.backend.batch import DecodeFailed
from operators.engine.scheduler.prefix_cache import Match, PrefixCache
from operators.engine.scheduler.radix_tree import BLOCK, common_length
from operators.engine.scheduler.slots import Counts, SlotPool
from operators.engine.scheduler.step_batch import Chunking
from operators.engine.scheduler.waiting_queue import WaitingQueue
from operators.engine.sequence import Sequence, State
from operators.engine.sequence.placement import PrefixNode, Slot, SlotSnapshot
from operators.settings.runtime import KERNEL_TOKENS, EngineSettings

WORTH_A_STOP = 64
"""Fewest prompt tokens that a snapshot spares all sequences together: a stop costs a call of its own, and each sequence
a copy of the state."""
MIB = 1 << 20
NEARLY_BEST = 0.9
MOST_COMPARED = 64
"""Compare at most this many waiting sequences that share a node of the tree."""
log = logging.getLogger("pipeline.decode")


def prefix_cache(
    pool: SlotPool, queue: WaitingQueue, chunking: Chunking, counts: Counts, settings: EngineSettings
) -> PrefixCache:
    """Return the prefix cache for the decoder of `pool`."""
    if not pool.decoder.most_shared:
        queue.share_nothing()
    if pool.decoder.partial:
        return PrefixCache(pool, queue, chunking, counts)
    return SnapshotCache(pool, queue, chunking, counts, settings.snapshot_mb * MIB)


class SnapshotCache(PrefixCache):
    """The snapshots of one decoder, and the sequences that begin from them. `most_bytes`: of all snapshots together; 0:
    none is taken, and nothing is shared."""

    def __init__(
        self, pool: SlotPool, queue: WaitingQueue, chunking: Chunking, counts: Counts, most_bytes: int
    ) -> None:
        super().__init__(pool, queue, chunking, counts)
        self._keeps, self._least_copy = False, 0  # what a sequence leaves in its slot is of no use to others
        self._most_bytes = most_bytes
        self._snapshots: dict[SlotSnapshot, None] = {}
        if not most_bytes:
            queue.share_nothing()

    def save(self, rows: Seq[Sequence]) -> None:
        """Take snapshots of those of `rows` that have just computed a prefix, or a prompt, for which others wait."""
        for row in rows:
            group, length = row.placement.group, row.slot.num_cached
            stopped = length == row.placement.stop > 0
            awaited = (
                group is not None
                and group.logits is not None
                and group.waiting > 1
                and length == len(row.prompt) <= self._chunking.most_shared
                and not any(owner in self._snapshots for owner in group.owners)
            )
            if stopped or awaited:
                self._save(row, length)
            if stopped:
                self._begins(row)

    def forget(self) -> None:
        super().forget()
        for snapshot in list(self._snapshots):
            self._drop(snapshot)

    def _save(self, row: Sequence, length: int) -> None:
        """Take a snapshot of the slot of `row`, which has the first `length` tokens of its prompt."""
        for snapshot in [s for s in self._snapshots if s.group is not None and not s.group.waiting]:
            self._drop(snapshot)  # the last of the equal prompts has begun
        data = row.slot.decoder.save(row.slot.index)
        if len(data) > self._most_bytes:
            log.warning(
                "a snapshot of %d tokens takes %d MiB, more than runtime.snapshot_mb=%d; prompts are computed whole",
                *(length, len(data) // MIB, self._most_bytes // MIB),
            )
            self._most_bytes = 0
            self._queue.share_nothing()
            return
        with self._queue.lock:
            node = self._queue.tree.end_of(row, length // BLOCK)
            group = row.placement.group if length == len(row.prompt) else None
            snapshot = SlotSnapshot(row.prompt[:length], data, node, group)
            self._queue.own(snapshot)
            self._snapshots[snapshot] = None
            self.snapshot_bytes += len(data)
            while self.snapshot_bytes > self._most_bytes:
                self._drop(next(iter(self._snapshots)))
                self._counts.snapshots_evicted += 1
        self._counts.snapshots_taken += 1

    def _drop(self, snapshot: SlotSnapshot) -> None:
        del self._snapshots[snapshot]
        self.snapshot_bytes -= len(snapshot.data)
        self._queue.disown(snapshot)

    def _take(self, row: Sequence, match: Match) -> bool:
        assert isinstance(match.source, SlotSnapshot)
        try:
            row.slot.restore(match.source)
        except DecodeFailed as failure:
            log.warning("a snapshot of %d tokens is dropped and computed again: %s", match.count, failure)
            row.slot.truncate(0)
            self._drop(match.source)
            self._counts.snapshots_evicted += 1
            return False
        self._snapshots[match.source] = self._snapshots.pop(match.source)  # now the most recently used
        self._counts.snapshots_used += 1
        return True

    def _matches(self, node: PrefixNode, row: Sequence) -> Iterator[Match]:
        for owner in node.owners:
            if owner.prompt is None or not self._may_serve(owner, row):
                continue
            count = len(owner.prompt)
            if isinstance(owner, Slot) and owner.row is not None:
                count = owner.row.placement.stop
            if count and self._chunking.shared(row.prompt, owner.prompt[:count], node.depth * BLOCK) == count:
                yield Match(owner, count)

    def _may_serve(self, owner: Slot | SlotSnapshot, row: Sequence) -> bool:
        """Return True for a snapshot, and for a slot whose sequence has announced to stop, or computes all of an equal
        prompt."""
        if not super()._may_serve(owner, row):
            return False
        return isinstance(owner, SlotSnapshot) or (owner.row is not None and owner.num_cached < len(owner.row.prompt))

    def _begins(self, row: Sequence) -> None:
        """Announce where `row`, which computes its prompt, will stop next."""
        row.placement.stop = self._next_stop(row) if row.state is State.PREFILL and self._most_bytes else 0

    def _next_stop(self, row: Sequence) -> int:
        """Return the number of tokens after which `row` stops for others, 0 if it does not.

        Sequences that branch off close to each other share a stop: the first that spares nearly as many tokens as the
        best, since it suits more of those that are still to come.
        """
        begun, least = row.slot.num_cached, self._chunking.least(len(row.prompt))
        first, last = begun + max(least, BLOCK), len(row.prompt) - least
        with self._queue.lock:
            points = sorted(point for point in self._branches(row) if point >= first)
        for place, point in enumerate(points):
            if point > last:
                break
            near = points[place : bisect_left(points, point + KERNEL_TOKENS)]
            spared = {at: (at - begun) * (len(near) - near.index(at)) for at in near if at <= last}
            if max(spared.values()) >= WORTH_A_STOP:
                return min(at for at in spared if spared[at] >= NEARLY_BEST * max(spared.values()))
        return 0

    def _branches(self, row: Sequence) -> Iterator[int]:
        """Yield for each other sequence that waits the number of tokens that it can take over from `row`; none for
        those that share too little."""
        for other in self.waiting:
            yield self._point(other, row)
        node = row.slot.node  # None once it has lost its slot: then nothing of its prompt is in the tree for it
        beyond = 0
        while node is not None and node.depth * BLOCK + BLOCK > row.slot.num_cached:
            waiting = sum(heap.count for heap in node.waiting.values())
            if waiting > beyond:
                for heap in node.waiting.values():
                    for other in heap.rows()[:MOST_COMPARED]:
                        common = common_length(row.prompt, other.prompt, node.depth * BLOCK)
                        if common < (node.depth + 1) * BLOCK or not beyond:
                            yield self._point(other, row)
            beyond, node = waiting, node.parent

    def _point(self, other: Sequence, row: Sequence) -> int:
        """Return how many tokens `other` can take over from `row`; 0 if it waits for the whole prompt of `row`."""
        group = other.placement.group
        waits = group is not None and group is row.placement.group and len(row.prompt) <= self._chunking.most_shared
        if other is row or other.adapters != row.adapters or waits:
            return 0
        return self._chunking.shared(other.prompt, row.prompt)
