"""The scheduling policy: four pure functions of what is to be decided and what is known. Change a rule here.

Nothing here moves a row: the waiting queue applies `order`, the scheduler `may_admit`, `next_batch` and `victim`. A row
gets the same tokens under any policy; what changes is how long a run takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from operators.engine.sequence import Sequence
from operators.engine.sequence.row_heap import Order

CHUNKS_OF_ONE_AGE = 2


def order(seq: Sequence, number: int, *, longest_first: bool) -> Order:
    """The place of `seq` among the rows of its node that wait; the least comes first.

    By age (two neighbouring chunks before later ones, so that nothing below keeps a chunk from its end), priority,
    expected length (what starts last should end soon, or a few long rows decode alone at the end) and arrival, which is
    `number`. Between priority and length the queue puts rows that begin like one in a slot.
    """
    expected = seq.max_tokens if longest_first else 0
    return (seq.chunk // CHUNKS_OF_ONE_AGE, -seq.priority, -expected, number)


@dataclass(frozen=True, slots=True)
class KvState:
    """The KV cache as admission sees it.

    Args:
        cells: that all slots share; None: every slot has room for a row of the greatest length.
        reserved: for the rows in slots and those just admitted.
        optimistic: whether to reserve for what is to be expected, not for the longest that a row can get.
        mean_tokens: completion tokens of the rows that have finished; None: none has.
    """

    cells: int | None
    reserved: int = 0
    optimistic: bool = False
    mean_tokens: float | None = None


def may_admit(seq: Sequence, state: KvState) -> bool:
    """Whether `seq` may take a free slot: what it reserves fits beside the others. A row alone always may."""
    return state.cells is None or not state.reserved or state.reserved + reservation(seq, state) <= state.cells


def reservation(seq: Sequence, state: KvState) -> int:
    """KV cells to reserve for `seq`: its greatest length, or what is to be expected, but more than it has drawn."""
    tokens = seq.max_tokens
    if state.optimistic:
        expected = tokens / 2 if state.mean_tokens is None else state.mean_tokens
        tokens = min(tokens, max(round(expected), len(seq.tokens) + 1))
    return seq.cells(tokens)


class Kind(Enum):
    """What a step computes."""

    SAMPLE = "sample"
    """The rows whose logits are known already; the backend is not called."""
    PREFILL = "prefill"
    """Prompts of equal length."""
    DECODE = "decode"
    """One step of every row that decodes, and chunks of prompts where they may ride along."""


@dataclass(frozen=True, slots=True)
class StepState:
    """The slots as the next step finds them.

    Args:
        rows: in slots.
        known_logits: rows that can sample without a call.
        prefilling: rows whose prompts have tokens to compute now.
        mixes: whether prompts and decoding rows may share a call.
    """

    rows: int
    known_logits: int
    prefilling: int
    mixes: bool


def next_batch(state: StepState) -> Kind | None:
    """What the next step computes. Sampling first, since it costs nothing and the rows then decode with the others;
    prompts before decoding, since a slot that prefills later is a slot that does not decode now."""
    if state.known_logits:
        return Kind.SAMPLE
    if state.prefilling and not state.mixes:
        return Kind.PREFILL
    return Kind.DECODE if state.rows else None


def victim(seqs: Iterable[Sequence]) -> Sequence:
    """Which of `seqs`, at least one, gives up its slot: the youngest, which loses least."""
    return max(seqs, key=lambda seq: seq.placement.admission)
