"""Sequences made block by block: the known tokens of the current block, and the split of prompts into blocks.

Blocks are counted from position 0, so the prompt is cut into them too: its whole blocks are computed as they are, and
the rest of it opens the first block that is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from operators.engine.backend.interface import Logits, TokenIds
from operators.engine.sampling.candidates import Flags
from operators.engine.scheduler.radix_tree import common_length
from operators.engine.scheduler.step_batch import Chunking
from operators.engine.sequence import Sequence, State
from operators.engine.strategies.block_diffusion.remasking import Confidences


@dataclass(slots=True, eq=False)
class TokenBlock:
    """The block that a sequence is making, after `step` denoising steps.

    Args:
        ids: int32 [L]; unknown tokens have the mask's id, but only `known` tells which these are.
        known: bool [L]; the tokens that come from the prompt are so from the start.
    """

    ids: TokenIds
    known: Flags
    step: int = field(default=0, init=False)

    @property
    def is_complete(self) -> bool:
        return bool(self.known.all())


@dataclass(frozen=True, slots=True)
class Before:
    """The prediction of the token before a block, for models that predict the next position: of the block's first
    token, the same in each step. `logits`: float32 [n_vocab], a copy."""

    logits: Logits
    confidences: Confidences


@dataclass(slots=True, eq=False)
class BlockRow(Sequence):
    """A sequence that grows by whole blocks. Its tokens in the KV cache are always whole blocks."""

    block_length: int = 1
    block: TokenBlock | None = field(default=None, init=False)
    """The current block; None before the first has begun, and once it is in the KV cache."""
    before: Before | None = field(default=None, init=False)
    """The prediction of the last token in the KV cache, if decode.shift_logits is set."""

    @property
    def to_compute(self) -> int:
        """Number of tokens in whole blocks that are not in the KV cache, without the current block."""
        made = self.block_length if self.block is not None and self.block.is_complete else 0
        return self._whole(self.length) - made - self.slot.num_cached

    def update_state(self) -> None:
        self.state = State.PREFILL if self.to_compute > 0 else State.DECODE

    def cells(self, tokens: int) -> int:
        """Count whole blocks: the last one is computed whole, wherever the text ends in it."""
        return self._whole(len(self.prompt) + tokens + self.block_length - 1)

    def begin_block(self, mask_id: int) -> TokenBlock:
        """Begin the block after the KV cache; tokens of the prompt in it are known."""
        ids = np.full(self.block_length, mask_id, np.int32)
        of_prompt = self.prompt[self.slot.num_cached : self.slot.num_cached + self.block_length]
        ids[: len(of_prompt)] = of_prompt
        self.block = TokenBlock(ids, np.arange(self.block_length) < len(of_prompt))
        return self.block

    def end_block(self) -> int:
        """Append the tokens of a complete block, up to the end of the text; return the number of tokens after the
        end."""
        if self.block is None:
            raise RuntimeError("there is no block that could be complete")
        tokens = self.block.ids[max(0, len(self.prompt) - self.slot.num_cached) :].tolist()
        for taken, token in enumerate(tokens, 1):
            self.append(token)
            if self.ended:
                return len(tokens) - taken
        return 0

    def _whole(self, tokens: int) -> int:
        return tokens - tokens % self.block_length


class BlockChunking(Chunking):
    """Splits prompts into chunks of one block, of `length` tokens. So prompts of all lengths share prefixes, but no
    logits. `shift`: the last token of a prompt's blocks predicts the first one after them, so every sequence computes
    its last block itself."""

    shares_logits = False

    def __init__(self, length: int, shift: bool = False) -> None:
        super().__init__(0)
        self._length = length
        self._shift = shift

    def size(self, row: Sequence, room: int) -> int:
        return self._length if min(row.to_compute, room) >= self._length else 0

    def shared(self, text: TokenIds, other: TokenIds, known: int = 0) -> int:
        """Share only whole blocks: the tokens of a block see all of it.

        Blocks of one token are not: sequences that wait for others would leave holes, in which one may be alone.
        """
        if self._length == 1:
            return 0
        count = common_length(text, other, known)
        if self._shift:
            count = min(count, max(0, len(text) // self._length - 1) * self._length)
        return count - count % self._length
