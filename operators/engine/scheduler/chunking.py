"""Chunking policy: how prompts are split into chunks, and which chunks share a call.

In the per-sequence layout llama.cpp cuts a batch into micro-batches of equal token counts over consecutive slots, each
of which streams all weights: prompts of 60, 70 and 90 tokens become 3x60, 2x10, 1x20. So a call takes prompts of equal
length in consecutive slots.

CPU flash attention has one kernel for 64 tokens and more of a row (KERNEL_TOKENS in operators/settings/runtime.py) and
another for fewer, and a lone token has a third. So a prompt keeps its bits wherever it is cut as long as every chunk is
computed by the kernel that the whole would have been: chunks of 64 tokens or more for a prompt of 64 or more, of 2 to
63 for a shorter one (tests/operators/llama/test_cuts.py). And a short prompt may not take the beginning of a long one,
nor the reverse: the radix tree keeps them apart.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from operators.engine.backend.interface import DecoderShape, TokenIds
from operators.engine.scheduler.radix_tree import common_length
from operators.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """The next `count` tokens of `row`. `completes`: they are the last to compute."""

    row: Sequence
    count: int
    completes: bool


class Chunking:
    """The rule for splitting prompts without changing their bits, for sequences that decode one token per step.

    Args:
        kernel_tokens: a prompt of that many tokens has no chunk below it, and a shorter one none of a single token;
            0: prompts may be cut anywhere.
    """

    def __init__(self, kernel_tokens: int) -> None:
        self._kernel_tokens = kernel_tokens

    def size(self, row: Sequence, room: int) -> int:
        """Return the tokens of the next chunk of `row` if `room` tokens fit; 0 if no valid chunk fits."""
        left = row.to_compute
        if left <= room:
            return left
        if not self._kernel_tokens:
            return room
        # Forced tokens after a prompt are always fewer than kernel_tokens.
        least = self._least(row) if row.slot.num_cached < len(row.prompt) else 2
        count = min(room, left - least)
        return count if count >= least else 0

    def shared(self, row: Sequence, prompt: TokenIds, known: int = 0) -> int:
        """Return how many tokens of `row`, which has not begun, may be taken from a slot with `prompt`; 0 if that does
        not pay. `known`: tokens known to be equal."""
        if not self._kernel_tokens:
            return min(common_length(row.prompt, prompt, known), len(row.prompt) - 1)
        if (len(prompt) >= self._kernel_tokens) != (len(row.prompt) >= self._kernel_tokens):
            return 0
        least = self._least(row)
        count = min(common_length(row.prompt, prompt, known), len(row.prompt) - least)
        return count if count >= least else 0

    def _least(self, row: Sequence) -> int:
        return self._kernel_tokens if len(row.prompt) >= self._kernel_tokens else 2


def prefill_group(rows: Seq[Sequence], shape: DecoderShape, chunking: Chunking, *, grouped: bool) -> list[PrefillChunk]:
    """Return a chunk of the first of `rows`, which are in slot order; if `grouped`, also chunks of equal length of the
    rows in the following slots: one micro-batch."""
    first = rows[0]
    size = chunking.size(first, shape.n_ubatch)
    most = shape.n_ubatch // size if grouped else 1
    chunks: list[PrefillChunk] = []
    for place, row in enumerate(rows[:most]):
        if row.slot.index != first.slot.index + place or chunking.size(row, shape.n_ubatch) != size:
            break
        chunks.append(PrefillChunk(row, size, size == row.to_compute))
    return chunks


def chunks_within(rows: Seq[Sequence], room: int, chunking: Chunking) -> list[PrefillChunk]:
    """Return chunks of `rows`, in this order, that fit into `room` tokens of a mixed batch."""
    chunks: list[PrefillChunk] = []
    for row in rows:
        size = chunking.size(row, room) if room > 0 else 0
        if not size:
            break
        chunks.append(PrefillChunk(row, size, size == row.to_compute))
        room -= size
    return chunks
