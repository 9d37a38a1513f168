"""Which prompts are computed in one call, and how they are cut.

In the per-sequence layout llama.cpp cuts a batch into micro-batches of equal token counts over consecutive slots, each
of which streams all weights: prompts of 60, 70 and 90 tokens become 3x60, 2x10, 1x20. So a call takes prompts of equal
length in consecutive slots. Where a prompt may be cut is said in operators/engine/scheduler/radix_tree.py.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from operators.engine.backend.interface import DecoderShape, TokenIds
from operators.engine.scheduler.radix_tree import common_length
from operators.engine.sequence import Sequence
from operators.settings.runtime import KERNEL_TOKENS


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """`count` tokens of `row`, from token `row.n_past` on."""

    row: Sequence
    count: int

    @property
    def completes(self) -> bool:
        """Whether the prompt is in the cache after it."""
        return self.count == self.row.prompt_left

    @property
    def draws(self) -> bool:
        """Whether a token is drawn after it."""
        return self.completes and self.row.draws_after_feed


class Cut(Protocol):
    """How rows are cut into what they bring to a call."""

    @property
    def lone(self) -> bool:
        """Whether a row may bring a single token, which the backend computes with other kernels where it is alone."""

    @property
    def mixes(self) -> bool:
        """Whether pieces of prompts may share a call with rows that decode where each slot is its own stream: they are
        as long."""

    def step(self, row: Sequence) -> int:
        """Tokens that `row`, which decodes, brings to its next call."""

    def piece(self, row: Sequence, room: int) -> int:
        """Tokens of the next piece of `row` where `room` tokens fit; 0 if none can be computed there."""

    def shared(self, row: Sequence, prompt: TokenIds, known: int = 0) -> int:
        """How many tokens of `row` may be taken from a slot that holds `prompt`; 0 if it is not worth it. `known`: so
        many are known to be equal."""


@dataclass(frozen=True)
class Cutting:
    """Where prompts may be cut so that their bits stay the same, for rows that decode a token a step.

    Args:
        kernel_tokens: a prompt of that many tokens has no piece below it, and a shorter one none of a single token;
            0: any cut will do.
    """

    kernel_tokens: int
    lone = True
    mixes = False

    def step(self, row: Sequence) -> int:
        """See Cut.step."""
        return 1

    def piece(self, row: Sequence, room: int) -> int:
        """See Cut.piece."""
        left = row.prompt_left
        if left <= room:
            return left
        if not self.kernel_tokens:
            return room
        least = self._least(row)
        count = min(room, left - least)
        return count if count >= least else 0

    def shared(self, row: Sequence, prompt: TokenIds, known: int = 0) -> int:
        """See Cut.shared."""
        if not self.kernel_tokens:
            return min(common_length(row.prompt, prompt, known), len(row.prompt) - 1)
        if (len(prompt) >= self.kernel_tokens) != self._is_long(row):
            return 0
        least = self._least(row)
        count = min(common_length(row.prompt, prompt, known), len(row.prompt) - least)
        return count if count >= least else 0

    def _is_long(self, row: Sequence) -> bool:
        return len(row.feed) >= self.kernel_tokens and not row.forced

    def _least(self, row: Sequence) -> int:
        return self.kernel_tokens if self._is_long(row) else 2


def cutting(shape: DecoderShape) -> Cutting:
    """How prompts are cut on a decoder of this shape."""
    return Cutting(KERNEL_TOKENS if shape.deterministic else 0)


def one_micro_batch(rows: Seq[Sequence], shape: DecoderShape, cut: Cut, *, grouped: bool) -> list[PrefillChunk]:
    """Chunks of the first of `rows`, which are in the order of their slots, and of equally long ones in the next."""
    first = rows[0]
    count = cut.piece(first, shape.n_ubatch)
    taken = [first]
    for row in rows[1:] if grouped else ():
        if row.slot != taken[-1].slot + 1 or cut.piece(row, shape.n_ubatch) != count:
            break
        if count * (len(taken) + 1) > shape.n_ubatch:
            break
        taken.append(row)
    return [PrefillChunk(row, count) for row in taken]


def riders(rows: Seq[Sequence], room: int, cut: Cut) -> list[PrefillChunk]:
    """Chunks of `rows`, in this order, that fit into `room` tokens beside rows that decode."""
    chunks: list[PrefillChunk] = []
    for row in rows:
        count = cut.piece(row, room) if room > 0 else 0
        if not count:
            break
        chunks.append(PrefillChunk(row, count))
        room -= count
    return chunks
