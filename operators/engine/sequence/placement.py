"""Where the scheduler has put a sequence: its slot, its prompt in the radix tree, the sequences with that prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from operators.engine.backend.interface import Decoder, Logits, TokenIds
from operators.engine.sequence.node_queue import NodeQueue, RowHeap

if TYPE_CHECKING:
    from operators.engine.sequence.sequence import Sequence


@dataclass(eq=False, slots=True)
class PromptGroup:
    """Sequences with one and the same prompt: it is computed once, and they draw their first tokens from the same
    logits.

    Attributes:
        key: the prompt's bytes.
        waiting: number of sequences that do not have it in a slot yet.
        owners: slots that have the whole prompt, or whose sequence computes it now.
        logits: float32 [n_vocab] after its last token; kept while sequences wait.
    """

    key: bytes
    waiting: int = 0
    owners: set[Slot] = field(default_factory=set)
    logits: Logits | None = None


class PrefixNode:
    """A prefix of `depth` blocks. `waiting`: the sequences of each node queue that begin with it; `owners`: slots that
    do, those that have it for the longest time first."""

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
        """Whether no slot, no waiting sequence and no longer prefix needs it."""
        return not (self.waiting or self.owners or self.children)


@dataclass(frozen=True, slots=True)
class SavedCache:
    """The KV cache of a slot, as the decoder saved it, and the number of tokens in it."""

    data: bytes
    num_cached: int


@dataclass(eq=False, slots=True)
class Slot:
    """A sequence id of a decoder: the sequence in it, and what its KV cache holds.

    `num_cached` is written by the calls that change the cache and by nothing else: those below, and StepBatch.decode.

    Attributes:
        decoder: whose sequence id it is.
        index: the sequence id.
        num_cached: tokens in the KV cache.
        row: the sequence that is in it.
        prompt: of the sequence that is there; once it has left, what of it is in the KV cache. None: others take
            nothing.
        node: where that prompt ends in the radix tree.
        group: the sequences that wait with that very prompt.
    """

    decoder: Decoder
    index: int
    num_cached: int = 0
    row: Sequence | None = None
    prompt: TokenIds | None = None
    node: PrefixNode | None = None
    group: PromptGroup | None = None

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens, and nothing that a failed call may have left behind them."""
        self.decoder.truncate(self.index, length)
        self.num_cached = length

    def copy(self, source: Slot, length: int) -> None:
        """Replace what is here by the first `length` tokens of `source`."""
        self.decoder.copy(source.index, self.index, length)
        self.num_cached = length

    def save(self) -> SavedCache:
        """Copy what is here, for `restore`."""
        return SavedCache(self.decoder.save(self.index), self.num_cached)

    def restore(self, saved: SavedCache) -> None:
        """Put back what was saved. The slot is empty."""
        self.decoder.restore(self.index, saved.data)
        self.num_cached = saved.num_cached


@dataclass(eq=False, slots=True)
class Placement:
    """What the scheduler keeps of a sequence.

    Attributes:
        queued: whether it waits for its first slot.
        node: where its prompt ends in the radix tree; None while it is too short to be shared.
        group: the sequences with the same prompt that do not have it yet, itself included.
        admission: number of its admission: of two sequences the younger has the higher one.
        shared_tokens: prompt tokens that it did not compute but took from another slot.
        preemptions: how often it gave up its slot.
        saved: what its slot held when it was preempted, if that was kept.
    """

    queued: bool = False
    node: PrefixNode | None = None
    group: PromptGroup | None = None
    admission: int = 0
    shared_tokens: int = 0
    preemptions: int = 0
    saved: SavedCache | None = None
