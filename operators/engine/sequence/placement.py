"""Where the scheduler has put a row: its slot, its prompt in the tree of prefixes, the rows with the same prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from operators.engine.backend.interface import Logits, TokenIds
from operators.engine.sequence.row_heap import RowHeap

if TYPE_CHECKING:
    from operators.engine.sequence.sequence import Sequence


@dataclass(eq=False, slots=True)
class PromptGroup:
    """Rows that have one and the same prompt: it is computed once, and they draw their first tokens from the same
    logits.

    Attributes:
        key: the prompt's bytes.
        waiting: rows that do not have it in a slot yet.
        holders: slots that have the whole prompt, or whose row computes it now.
        logits: float32 [n_vocab] after its last token; kept while rows wait.
    """

    key: bytes
    waiting: int = 0
    holders: set[Slot] = field(default_factory=set)
    logits: Logits | None = None


class PrefixNode:
    """A prefix of `depth` blocks. `waiting`: the rows of each line that begin with it; `holders`: slots that do, those
    that have it for the longest time first."""

    __slots__ = ("children", "depth", "holders", "key", "parent", "waiting")

    def __init__(self, parent: PrefixNode | None, key: bytes) -> None:
        self.parent = parent
        self.key = key
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.children: dict[bytes, PrefixNode] = {}
        self.waiting: dict[object, RowHeap] = {}
        self.holders: dict[Slot, None] = {}

    @property
    def unused(self) -> bool:
        """Whether nobody needs it."""
        return not (self.waiting or self.holders or self.children)


@dataclass(eq=False, slots=True)
class Slot:
    """A sequence id of a decoder.

    Attributes:
        pool: the SlotPool whose it is.
        index: the sequence id.
        row: the row that is in it.
        prompt: of the row that is there; once it has left, what of it is in the KV cache. None: others take nothing.
        end: where that prompt stands in the tree of prefixes.
        group: the rows that wait with that very prompt.
        dirty: whether its KV cache holds anything.
    """

    pool: object
    index: int
    row: Sequence | None = None
    prompt: TokenIds | None = None
    end: PrefixNode | None = None
    group: PromptGroup | None = None
    dirty: bool = False

    @property
    def ready(self) -> int:
        """Tokens of `prompt` that are in the KV cache now."""
        if self.row is not None:
            return self.row.n_past
        return 0 if self.prompt is None else len(self.prompt)


@dataclass(eq=False, slots=True)
class Placement:
    """What the scheduler keeps of a row.

    Attributes:
        node_queue: where it waits or has waited for its first slot.
        queued: whether it waits there.
        node: where its prompt stands in the tree of prefixes; None while it is too short to be shared.
        group: the rows with the same prompt that do not have it yet, itself included.
        admission: number of its admission: of two rows the younger has the higher one.
        shared_tokens: prompt tokens that it did not compute but took from another row.
        preemptions: how often it gave up its slot.
        saved: what its slot held when it gave it up, if that was kept.
    """

    node_queue: object | None = None
    queued: bool = False
    node: PrefixNode | None = None
    group: PromptGroup | None = None
    admission: int = 0
    shared_tokens: int = 0
    preemptions: int = 0
    saved: bytes | None = None
