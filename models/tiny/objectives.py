"""What a run learns: the next token, or what is behind the masks of a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from models.tiny.batches import ADAPTED_WEIGHTS, Batch, Coded, drawn_steps, padded, weights_at
from models.tiny.blocks import at_random, from_place, laid_out
from models.tiny.chat import END_OF_TEXT, MASK


class Objective(Protocol):
    """What a run learns."""

    def steps(self, tokenizer: Tokenizer, seed: int, first: int, rows: int, groups: int) -> Iterator[list[Batch]]:
        """The batches of step `first`, `first + 1` ...; step k is the same whether the run was resumed or not."""
        ...

    def asked(self, tokenizer: Tokenizer, rows: Sequence[Coded]) -> Iterator[Batch]:
        """Batches of all of `rows` that ask together for each token of a completion once, given the right ones before
        it. Rows stand in each batch in the order given."""
        ...


@dataclass(frozen=True)
class NextToken:
    """Each token from those before it."""

    def steps(self, tokenizer: Tokenizer, seed: int, first: int, rows: int, groups: int) -> Iterator[list[Batch]]:
        """See Objective."""
        for _, drawn in drawn_steps(tokenizer, seed, first, rows, groups, weights_at):
            yield [padded(group) for group in drawn]

    def asked(self, tokenizer: Tokenizer, rows: Sequence[Coded]) -> Iterator[Batch]:
        """See Objective."""
        yield padded(rows)


@dataclass(frozen=True)
class MaskedBlocks:
    """The tokens behind masks, from the rest of their block of `length` tokens and the blocks before it."""

    length: int

    def steps(self, tokenizer: Tokenizer, seed: int, first: int, rows: int, groups: int) -> Iterator[list[Batch]]:
        """See Objective."""
        filler, mask = self._ids(tokenizer)
        for step, drawn in drawn_steps(tokenizer, seed, first, rows, groups, lambda _: ADAPTED_WEIGHTS):
            rng = np.random.default_rng((seed, step))
            yield [laid_out([at_random(r, self.length, filler, rng) for r in g], self.length, mask) for g in drawn]

    def asked(self, tokenizer: Tokenizer, rows: Sequence[Coded]) -> Iterator[Batch]:
        """See Objective. The tokens of a block are asked for from left to right, with masks behind."""
        filler, mask = self._ids(tokenizer)
        for place in range(self.length):
            yield laid_out([from_place(row, self.length, filler, place) for row in rows], self.length, mask)

    def _ids(self, tokenizer: Tokenizer) -> tuple[int, int]:
        """What fills the block in which a text ends, and the mask."""
        return tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(MASK)
