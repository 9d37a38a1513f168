"""The scheduling policy: four pure functions of what is to be decided and what is known. Change a rule here.

| function | decides | applied by |
|---|---|---|
| `order` | which of the sequences of a node is admitted first | waiting_queue.py |
| `may_admit` | whether a sequence may take a free slot | scheduler.py |
| `next_batch` | what the next step computes, prompts apart or beside decoding sequences | scheduler.py |
| `victim` | which sequence gives up its slot where the KV cache is full | scheduler.py |

Nothing here moves a sequence. A text is made of the same tokens under any policy, to the bit as long as prompts do not
share a call with decoding sequences in the per-sequence layout; what changes is how long a run takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from operators.engine.sequence import Sequence
from operators.engine.sequence.node_queue import Order

CHUNKS_OF_ONE_AGE = 2


def order(seq: Sequence, number: int, *, longest_first: bool) -> Order:
    """The place of `seq` among the sequences of its node that wait; the least comes first.

    By age (two neighbouring chunks before later ones, so that no priority keeps a chunk from its end), priority,
    expected length (what starts last should end soon, or a few long ones decode alone at the end) and arrival, which is
    `number`. Between priority and length the queue puts sequences whose prefix is cached.
    """
    expected = seq.max_tokens if longest_first else 0
    return (seq.chunk // CHUNKS_OF_ONE_AGE, -seq.priority, -expected, number)


@dataclass(frozen=True, slots=True)
class KvState:
    """The KV cache as admission sees it.

    Args:
        cells: that all slots share; None: every slot has room for a sequence of the greatest length.
        reserved: for the sequences in slots and those just admitted.
        optimistic: whether to reserve for the expected length, not for the greatest.
        mean_tokens: completion tokens of the sequences that have finished; None: none has.
    """

    cells: int | None
    reserved: int = 0
    optimistic: bool = False
    mean_tokens: float | None = None


def may_admit(seq: Sequence, state: KvState) -> bool:
    """Whether `seq` may take a free slot: what it reserves fits beside the others. It always may when it is alone."""
    return state.cells is None or not state.reserved or state.reserved + reservation(seq, state) <= state.cells


def reservation(seq: Sequence, state: KvState) -> int:
    """KV cells to reserve for `seq`: its greatest length, or the expected one, but more than it has drawn."""
    tokens = seq.max_tokens
    if state.optimistic:
        expected = tokens / 2 if state.mean_tokens is None else state.mean_tokens
        tokens = min(tokens, max(round(expected), len(seq.tokens) + 1))
    return seq.cells(tokens)


class Kind(Enum):
    """What a step computes."""

    SAMPLE = "sample"
    """The sequences whose logits are known already; the backend is not called."""
    PREFILL = "prefill"
    """A prefill group: chunks of equal length in consecutive slots."""
    DECODE = "decode"
    """One step of every sequence that decodes."""
    MIXED = "mixed"
    """The same, and beside them as many tokens of prompts as fit into the micro-batch."""


@dataclass(frozen=True, slots=True)
class StepState:
    """The slots as the next step finds them.

    Args:
        rows: in slots.
        known_logits: sequences that can sample without a call.
        prefilling: sequences with a prompt to compute now.
        per_sequence: each slot has a KV stream of its own; false: the unified layout.
        block: tokens of a block with block diffusion, where a chunk of a prompt is as long as what a decoding sequence
            brings; 0: a token at a time.
    """

    rows: int
    known_logits: int
    prefilling: int
    per_sequence: bool
    block: int = 0


def next_batch(state: StepState) -> Kind | None:
    """What the next step computes; None: nothing.

    Sampling first, since it costs nothing and the sequences then decode with the others. Prompts before decoding, since
    a slot that prefills later is a slot that does not decode now. In the per-sequence layout they do not share a call:
    llama.cpp cuts a batch into micro-batches of equal token counts, so a prompt beside decoding sequences would be cut
    where its neighbours are, its bits would depend on them, and nothing would be gained, since each micro-batch streams
    the weights anew. In the unified layout there is one micro-batch, and blocks are all of one length.
    """
    if state.known_logits:
        return Kind.SAMPLE
    if state.prefilling:
        return Kind.PREFILL if state.per_sequence and not state.block else Kind.MIXED
    return Kind.DECODE if state.rows else None


def victim(seqs: Iterable[Sequence]) -> Sequence:
    """Which of `seqs`, at least one, gives up its slot: the youngest, which loses least."""
    return max(seqs, key=lambda seq: seq.placement.admission)
