"""Rows that are made block by block: what is known of the block at hand, and how prompts are cut into blocks.

Blocks are counted from position 0, so the prompt is cut into them too: its whole blocks are computed as they are, and
what is left of it opens the first block that is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from operators.engine.backend.interface import Logits, TokenIds
from operators.engine.scheduler.radix_tree import common_length
from operators.engine.sequence import Sequence, State
from operators.engine.strategies.block_diffusion.remasking import Beliefs


@dataclass(slots=True, eq=False)
class Block:
    """The block that a row is making.

    Args:
        ids: int32 [L]; what is not known yet has the mask's id, and only `known` says which that is.
        known: bool [L]; the tokens that come from the prompt are so from the start.

    Attributes:
        step: denoising steps so far.
    """

    ids: TokenIds
    known: npt.NDArray[np.bool_]
    step: int = field(default=0, init=False)

    @property
    def is_complete(self) -> bool:
        """Whether every token is known."""
        return bool(self.known.all())


@dataclass(frozen=True, slots=True)
class Before:
    """What the token before a block says, where logits are read one position before their token: of the first of the
    block, and the same in each of its steps.

    Args:
        logits: float32 [n_vocab], a copy.
        beliefs: of this one position.
    """

    logits: Logits
    beliefs: Beliefs


@dataclass(slots=True, eq=False)
class BlockRow(Sequence):
    """A sequence that grows by whole blocks. `n_past`, the tokens in the KV cache, is always a number of blocks.

    Args:
        block_length: tokens of a block.
    """

    block_length: int = 1
    block: Block | None = field(default=None, init=False)
    """The one that is being made; None before it has begun, and once it is in the KV cache."""
    before: Before | None = field(default=None, init=False)
    """Of what is in the KV cache, where decode.shift_logits asks for it."""

    @property
    def feed(self) -> TokenIds:
        """The whole blocks of the prompt, or for a row that begins anew all blocks that it had made."""
        return self.prompt[: self._whole(len(self.prompt))] if self._replay is None else self._replay

    @property
    def draws_after_feed(self) -> bool:
        """Never: a block is begun after it, from nothing but masks."""
        return False

    def settle(self) -> None:
        """Be in the state that follows from what is in the KV cache."""
        self.state = State.PREFILL if self.prompt_left > 0 else State.DECODE

    def give_up(self, saved: bytes | None) -> None:
        """Leave the slot, to go on later. What is known of the block at hand stays known."""
        made = max(self.n_past, len(self.feed))
        Sequence.give_up(self, saved)
        if saved is None:
            self._replay = np.concatenate([self.prompt, np.array(self.tokens, np.int32)])[:made]

    def cells(self, tokens: int) -> int:
        """The last block is computed whole, wherever the text ends in it."""
        return self._whole(len(self.prompt) + tokens + self.block_length - 1)

    def begin_block(self, mask_id: int) -> Block:
        """The block behind what is in the KV cache, of which the rest of the prompt is known."""
        ids = np.full(self.block_length, mask_id, np.int32)
        given = self.prompt[self.n_past : self.n_past + self.block_length]
        ids[: len(given)] = given
        self.block = Block(ids, np.arange(self.block_length) < len(given))
        return self.block

    def end_block(self) -> int:
        """Take the tokens of a complete block, up to the end of the text; returns how many lie behind it."""
        if self.block is None:
            raise RuntimeError("there is no block that could be complete")
        made = self.block.ids[max(0, len(self.prompt) - self.n_past) :].tolist()
        for taken, token in enumerate(made, 1):
            self.append(token)
            if self.finish_reason is not None or self.error is not None:
                return len(made) - taken
        return 0

    def _whole(self, tokens: int) -> int:
        return tokens - tokens % self.block_length


@dataclass(frozen=True)
class BlockCut:
    """Implements operators.engine.scheduler.prefill.Cut: rows bring one block to each call, of their prompt or behind
    it.

    Args:
        length: tokens of a block.
        shift: whether the last token of a prompt's blocks says what comes first behind them, so that a row computes the
            last block itself.
    """

    length: int
    shift: bool = False
    mixes = True

    @property
    def lone(self) -> bool:
        """See Cut.lone."""
        return self.length == 1

    def step(self, row: Sequence) -> int:
        """See Cut.step."""
        return self.length

    def piece(self, row: Sequence, room: int) -> int:
        """See Cut.piece."""
        return self.length if min(row.prompt_left, room) >= self.length else 0

    def shared(self, row: Sequence, prompt: TokenIds, known: int = 0) -> int:
        """See Cut.shared. Whole blocks alone: the tokens of a block see all of it.

        Blocks of one token are not shared: rows that wait for others would leave holes, in which a row may be alone.
        """
        if self.length == 1:
            return 0
        count = common_length(row.prompt, prompt, known)
        if self.shift:
            count = min(count, max(0, len(row.feed) - self.length))
        return count - count % self.length
