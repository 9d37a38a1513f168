"""The placement of a sequence by the scheduler: its slot, its prefix in the radix tree, its prompt group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from operators.engine.backend.interface import Decoder, Logits, TokenIds
from operators.engine.sequence.node_queue import NodeQueue, RowHeap

if TYPE_CHECKING:
    from operators.engine.sequence.sequence import Sequence


@dataclass(eq=False, slots=True)
class PromptGroup:
    """Sequences with equal prompts: the prompt is computed once, and their first tokens are drawn from the same logits.

    Attributes:
        key: the prompt's bytes.
        waiting: number of sequences that do not have the prompt in a slot yet.
        owners: slots with the whole prompt, or whose sequence is computing it.
        logits: float32 [n_vocab] after its last token; kept while sequences wait.
    """

    key: bytes
    waiting: int = 0
    owners: set[Slot] = field(default_factory=set)
    logits: Logits | None = None


class PrefixNode:
    """A prefix of `depth` blocks. `waiting`: by node queue, the sequences that begin with it; `owners`: slots that
    begin with it, the oldest first."""

    __slots__ = ("children", "depth", "key", "owners", "parent", "waiting")

    def __init__(self, parent: PrefixNode | None, key: bytes) -> None:
        self.parent = parent
        self.key = key
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.children: dict[bytes, PrefixNode] = {}
        self.waiting: dict[NodeQueue | None, RowHeap] = {}
        self.owners: dict[Slot, None] = {}

    @property
    def unused(self) -> bool:
        """True if no slot, waiting sequence or longer prefix needs it."""
        return not (self.waiting or self.owners or self.children)


@dataclass(frozen=True, slots=True)
class SavedCache:
    """The saved KV cache of a slot, and its number of tokens."""

    data: bytes
    num_cached: int


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

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens, and drop all others, also those left by a failed call."""
        self.decoder.truncate(self.index, length)
        self.num_cached = length

    def copy(self, source: Slot, length: int) -> None:
        """Replace the contents by the first `length` tokens of `source`."""
        self.decoder.copy(source.index, self.index, length)
        self.num_cached = length

    def save(self) -> SavedCache:
        """Save the contents, for `restore`."""
        return SavedCache(self.decoder.save(self.index), self.num_cached)

    def restore(self, saved: SavedCache) -> None:
        """Restore saved contents into this empty slot."""
        self.decoder.restore(self.index, saved.data)
        self.num_cached = saved.num_cached


@dataclass(eq=False, slots=True)
class Placement:
    """The scheduler's record of a sequence.

    Attributes:
        queued: whether it waits for its first slot.
        node: where its prompt ends in the radix tree; None while it is too short to be shared.
        group: the sequences with the same prompt that do not have it yet, itself included.
        admission: number of its admission: of two sequences the younger has the higher one.
        shared_tokens: prompt tokens that it did not compute but took from another slot.
        preemptions: number of times that it lost its slot.
        saved: the contents of its slot when it was preempted, if they were kept.
    """

    queued: bool = False
    node: PrefixNode | None = None
    group: PromptGroup | None = None
    admission: int = 0
    shared_tokens: int = 0
    preemptions: int = 0
    saved: SavedCache | None = None
