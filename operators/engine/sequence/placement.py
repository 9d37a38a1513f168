"""The place of a sequence: in the queue of its node, in the radix tree, in a slot."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from operators.engine.backend.interface import Buffer, Decoder, Logits, TokenIds
from pipeline.api.meter import StageMeter

if TYPE_CHECKING:
    from operators.engine.sequence.sequence import Sequence

Order = tuple[int, float, int, int]
"""Age, priority, expected length and number of a sequence; the lowest comes first."""
Entry = tuple[Order, "Sequence"]
_STALE = 64
"""Entries of sequences that have left to tolerate, beyond as many as there are live ones."""


class RowHeap:
    """The waiting sequences of one node, or those of them with a common prefix. One that has left is dropped when it
    reaches the top, or with all others that have left once they are the majority."""

    __slots__ = ("_heap", "count")

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self.count = 0
        """Sequences that wait."""

    def push(self, entry: Entry) -> None:
        """Add a waiting sequence."""
        heapq.heappush(self._heap, entry)
        self.count += 1

    def copy(self) -> RowHeap:
        """Return a heap of the same sequences."""
        other = RowHeap()
        other._heap, other.count = self._heap.copy(), self.count
        return other

    def discard(self) -> None:
        """Count one sequence less; its `placement.queued` is already false."""
        self.count -= 1
        if len(self._heap) > 2 * self.count + _STALE:
            self._heap = [entry for entry in self._heap if entry[1].placement.queued]
            heapq.heapify(self._heap)

    def first(self) -> Entry | None:
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
        heap: the sequences that wait.
        by_adapters: those by their adapters, where a decoder does not mix these; else empty.
        finished: sequences that have ended; appended to by the engine's thread, emptied by the node's.
        on_finished: called from the engine's thread with each sequence that ends, before the node can collect it.
        ended: whether no more sequences will be submitted.
        admitted, collected: number of sequences that were given a slot, and that the node has taken back.
    """

    def __init__(self, meter: StageMeter, depth: int, capacity: int, wake: Callable[[], None]) -> None:
        self.meter = meter
        self.depth = depth
        self.wake = wake
        self._capacity = capacity
        self.heap = RowHeap()
        self.by_adapters: dict[int, RowHeap] = {}
        self.finished: deque[Sequence] = deque()
        self.on_finished: Callable[[Sequence], None] = lambda row: None
        self.ended = False
        self.admitted = self.collected = 0

    @property
    def waiting(self) -> int:
        return self.heap.count

    def enqueue(self, entry: Entry, *, apart: bool) -> None:
        """Add a sequence that waits. `apart`: sequences with different adapters share no call."""
        self.heap.push(entry)
        if apart:
            self.by_adapters.setdefault(entry[1].adapters, RowHeap()).push(entry)

    def dequeue(self, row: Sequence) -> None:
        """Note that `row` waits no longer."""
        row.placement.queued = False
        self.heap.discard()
        if (heap := self.by_adapters.get(row.adapters)) is not None:
            heap.discard()
            if not heap.count:
                del self.by_adapters[row.adapters]

    def has_others(self, adapters: int) -> bool:
        """Return True if a sequence waits whose adapters are not these, where they are kept apart."""
        return bool(self.by_adapters) and self.by_adapters.keys() != {adapters}

    def waiting_with(self, adapters: int) -> int:
        """Return how many sequences wait with these adapters, where they are kept apart."""
        heap = self.by_adapters.get(adapters)
        return 0 if heap is None else heap.count

    def count(self, row: Sequence) -> None:
        """Count the tokens that `row` has got since the last call, with the first also those of its prompt."""
        place, drawn = row.placement, len(row.tokens)
        if not place.counted and (drawn or row.finish_reason is not None):
            self.meter.tokens_in += len(row.prompt)
        self.meter.tokens_out += drawn - place.counted
        place.counted = drawn

    def finish(self, row: Sequence) -> None:
        """Return the finished `row` to the node. Called from the engine's thread."""
        self.on_finished(row)
        self.finished.append(row)

    @property
    def admissible(self) -> int:
        """Number of waiting sequences that the node has room to take back."""
        return max(0, min(self.heap.count, self._capacity - (self.admitted - self.collected)))


@dataclass(eq=False, slots=True)
class PromptGroup:
    """Sequences with equal prompts and adapters: the prompt is computed once, and their first tokens are drawn from the
    same logits.

    Attributes:
        key: 16-byte digest of the prompt and the adapters.
        waiting: number of sequences that do not have the prompt in a slot yet.
        owners: slots with the whole prompt, or whose sequence is computing it; or a snapshot of it.
        logits: after its last token, float32 [n_vocab] or the keys of candidates; kept while sequences wait.
    """

    key: bytes
    waiting: int = 0
    owners: set[Slot | SlotSnapshot] = field(default_factory=set)
    logits: Logits | None = None


class PrefixNode:
    """A prefix of `depth` blocks, and the shorter ones that are longer than that of `parent`.

    Attributes:
        key: the first block after the prefix of `parent`.
        prompt: tokens that begin with the prefix, of a sequence or slot that has it.
        children: the nodes below, by their keys.
        waiting: by node queue, the sequences that begin with it.
        owners: slots and snapshots that begin with it, the oldest first.
        noted: orders the nodes with both by when they got them; 0: it has not.
    """

    __slots__ = ("children", "depth", "key", "noted", "owners", "parent", "prompt", "waiting")

    def __init__(self, parent: PrefixNode | None, key: bytes, depth: int, prompt: TokenIds) -> None:
        self.parent = parent
        self.key = key
        self.depth = depth
        self.prompt = prompt
        self.children: dict[bytes, PrefixNode] = {}
        self.waiting: dict[NodeQueue | None, RowHeap] = {}
        self.owners: dict[Slot | SlotSnapshot, None] = {}
        self.noted = 0

    def path(self) -> Iterator[PrefixNode]:
        """Yield it, then the nodes above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    @property
    def users(self) -> tuple[int, int]:
        """Numbers of owners and of sequences that wait."""
        return len(self.owners), sum(heap.count for heap in self.waiting.values())

    def any_prompt(self) -> TokenIds:
        """Return the prompt of one that has the prefix still, so that those of others can be freed."""
        for owner in self.owners:
            if owner.prompt is not None:
                return owner.prompt
        firsts = (heap.first() for heap in self.waiting.values())
        return next((first[1].prompt for first in firsts if first is not None), self.prompt)


@dataclass(eq=False, slots=True)
class Slot:
    """A sequence id of a decoder: its sequence, and the contents of its KV cache.

    `num_cached` is written by the calls that change the cache and by nothing else: those below, and StepBatch.decode.

    Attributes:
        decoder: has the sequence id.
        index: the sequence id.
        num_cached: tokens in the KV cache.
        row: its sequence.
        prompt: of its sequence; after that has left, the part in the KV cache. None: nothing to share.
        node: where that prompt ends in the radix tree.
        group: the waiting sequences with the same prompt.
    """

    decoder: Decoder
    index: int
    num_cached: int = 0
    row: Sequence | None = None
    prompt: TokenIds | None = None
    node: PrefixNode | None = None
    group: PromptGroup | None = None

    def accept(self) -> None:
        """Count one more token as cached: a call has computed it as a draft, and it is the row's."""
        self.num_cached += 1

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens, and drop all others, also those left by a failed call."""
        self.decoder.truncate(self.index, length)
        self.num_cached = length

    def copy(self, source: Slot, length: int) -> None:
        """Replace the contents by the first `length` tokens of `source`."""
        self.decoder.copy(source.index, self.index, length)
        self.num_cached = length

    def restore(self, saved: SlotSnapshot) -> None:
        """Restore saved contents into this empty slot."""
        self.decoder.restore(self.index, saved.data)
        self.num_cached = saved.num_cached


@dataclass(eq=False, slots=True)
class SlotSnapshot:
    """The saved contents of a slot after `prompt`, the beginning of one or more prompts.

    Attributes:
        prompt: the tokens in it.
        data: the contents, as Decoder.save returns them.
        node: where `prompt` ends in the radix tree; None if it is shorter than a block.
        group: the waiting sequences whose whole prompt it is.
    """

    prompt: TokenIds
    data: Buffer
    node: PrefixNode | None
    group: PromptGroup | None = None

    @property
    def num_cached(self) -> int:
        return len(self.prompt)


@dataclass(eq=False, slots=True)
class Placement:
    """The scheduler's record of a sequence.

    Attributes:
        queued: whether it waits for its first slot.
        node: where its prompt ends in the radix tree; None while it is too short to be shared.
        group: the sequences with the same prompt that do not have it yet, itself included.
        admission: number of its admission: of two sequences the younger has the higher one.
        shared_tokens: prompt tokens that it did not compute but took from another slot.
        shared_logits: whether it drew its first token from the logits of a sequence with an equal prompt.
        preemptions: number of times that it lost its slot.
        counted: of its tokens, those that the meter of its node has.
        stop: number of prompt tokens after which a snapshot is taken; 0: none.
    """

    queued: bool = False
    node: PrefixNode | None = None
    group: PromptGroup | None = None
    admission: int = 0
    shared_tokens: int = 0
    shared_logits: bool = False
    preemptions: int = 0
    counted: int = 0
    stop: int = 0
