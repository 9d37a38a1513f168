"""The scheduling policy: four pure functions. Change a rule here.

| function | decides | applied by |
|---|---|---|
| `order` | which of the sequences of a node is admitted first | waiting_queue.py |
| `may_admit` | whether a sequence may take a free slot | scheduler.py |
| `next_batch` | the kind of the next step: prompts, decoding sequences, or both | scheduler.py |
| `victim` | which sequence gives up its slot where the KV cache is full | scheduler.py |

Nothing here moves a sequence. A text is made of the same tokens under any policy, to the bit as long as prompts do not
share a call with decoding sequences in the per-sequence layout; what changes is how long a run takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import Order

CHUNKS_OF_ONE_AGE = 2


def order(seq: Sequence, number: int, *, longest_first: bool) -> Order:
    """Return the sort key of `seq` among the waiting sequences of its node; the lowest is admitted first.

    By age (two neighbouring chunks before later ones, so that no priority keeps a chunk from its end), priority,
    expected length (what starts last should end soon, or a few long ones decode alone at the end) and arrival, which is
    `number`. Between priority and length the queue puts sequences whose prefix is cached.
    """
    expected = seq.max_tokens if longest_first else 0
    return (seq.chunk // CHUNKS_OF_ONE_AGE, -seq.priority, -expected, number)


@dataclass(frozen=True, slots=True)
class KvState:
    """The KV cache as seen by admission.

    Args:
        cells: shared by all slots; None: every slot has room for a sequence of the greatest length.
        reserved: for the sequences in slots and those just admitted.
        optimistic: whether to reserve for the expected length, not for the greatest.
        mean_tokens: mean completion tokens of finished sequences; None: none has finished.
    """

    cells: int | None
    reserved: int = 0
    optimistic: bool = False
    mean_tokens: float | None = None


def may_admit(seq: Sequence, state: KvState) -> bool:
    """Return True if `seq` may take a free slot: its reservation fits beside the others, or it is alone."""
    return state.cells is None or not state.reserved or state.reserved + reservation(seq, state) <= state.cells


def reservation(seq: Sequence, state: KvState) -> int:
    """Return the KV cells to reserve for `seq`: for its greatest length, or for the expected one but more than drawn so
    far."""
    tokens = seq.max_tokens
    if state.optimistic:
        expected = tokens / 2 if state.mean_tokens is None else state.mean_tokens
        tokens = min(tokens, max(round(expected), len(seq.tokens) + 1))
    return seq.cells(tokens)


class StepKind(Enum):
    """The work of a step."""

    SAMPLE = "sample"
    """Sample sequences whose logits are already known; the backend is not called."""
    PREFILL = "prefill"
    """A prefill group: chunks of equal length in consecutive slots."""
    DECODE = "decode"
    """One step of every decoding sequence."""
    MIXED = "mixed"
    """A decode step with as many prompt tokens as fit into the micro-batch."""


def next_batch(rows: int, known_logits: int, prefilling: int, *, per_sequence: bool, block: int = 0) -> StepKind | None:
    """Return the kind of the next step; None if there is nothing to do.

    Sampling first, since it costs nothing and the sequences then decode with the others. Prompts before decoding, since
    a slot that prefills later is a slot that does not decode now. In the per-sequence layout they do not share a call:
    llama.cpp cuts a batch into micro-batches of equal token counts, so a prompt beside decoding sequences would be cut
    where its neighbours are, its bits would depend on them, and nothing would be gained, since each micro-batch streams
    the weights anew. In the unified layout there is one micro-batch, and blocks are all of one length.

    Args:
        rows: sequences in slots.
        known_logits: those of them that can sample without a call.
        prefilling: those with a prompt to compute now.
        per_sequence: each slot has a KV stream of its own; false: the unified layout.
        block: tokens of a block with block diffusion, where prompts are split into blocks, too; 0: a token at a time.
    """
    if known_logits:
        return StepKind.SAMPLE
    if prefilling:
        return StepKind.PREFILL if per_sequence and not block else StepKind.MIXED
    return StepKind.DECODE if rows else None


def victim(seqs: Iterable[Sequence]) -> Sequence:
    """Return which of `seqs`, at least one, is preempted: the youngest, which loses least."""
    return max(seqs, key=lambda seq: seq.placement.admission)
