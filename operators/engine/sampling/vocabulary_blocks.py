"""The blocks into which a row of logits is cut, and the buffers that the steps of a draw share.

Block b of a vocabulary of V tokens holds the tokens b, b + width, b + 2 * width ...: NumPy reduces over the first axis
of `row.reshape(depth, width)` ten times faster than over contiguous blocks. The last V % depth tokens, the tail, are in
no block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

DEPTH = 32
"""Tokens in a block, if the vocabulary is large enough for a thousand blocks."""
_BLOCKS = 1024


class Layout:
    """The blocks of a vocabulary.

    Attributes:
        depth: tokens in a block.
        width: number of blocks.
        tail: the first token that is in no block.
    """

    def __init__(self, n_vocab: int) -> None:
        self.n_vocab = n_vocab
        self.depth = 1
        while self.depth < DEPTH and n_vocab // (2 * self.depth) >= _BLOCKS:
            self.depth *= 2
        self.width = n_vocab // self.depth
        self.tail = self.depth * self.width
        self.offsets = self.width * np.arange(self.depth, dtype=np.int64)
        """A block's number plus these are its tokens."""

    def blocks(self, row: Floats) -> Floats:
        """View a row [n_vocab] as its blocks, [depth, width]."""
        view: Floats = row[: self.tail].reshape(self.depth, self.width)
        return view


class Scratch:
    """Buffers for one row at a time, made once for a vocabulary, so that no step allocates an array of its size.

    Attributes:
        values, weights, scores, product: float32 [n_vocab].
        flags, marks: bool [n_vocab].
        sums: float32 [width].
        maxima: float32 [rows, width]; grown by `reserve`.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.values, self.weights, self.scores, self.product = np.empty((4, layout.n_vocab), np.float32)
        self.flags, self.marks = np.empty((2, layout.n_vocab), np.bool_)
        self.sums = np.empty(layout.width, np.float32)
        self.maxima = np.empty((0, layout.width), np.float32)

    def reserve(self, rows: int) -> None:
        """Make room for the block maxima of `rows` rows."""
        if len(self.maxima) < rows:
            self.maxima = np.empty((rows, self.layout.width), np.float32)

    def block_sums(self, values: Floats) -> npt.NDArray[np.float64]:
        """Return float64 [width + 1]: the sum of each block of `values`, float32 [n_vocab], and of the tail.

        A block is summed in float32 in the order of its tokens; nothing depends on other rows or on memory alignment.
        """
        np.add.reduce(self.layout.blocks(values), axis=0, out=self.sums)
        sums = np.empty(len(self.sums) + 1)
        sums[:-1] = self.sums
        sums[-1] = np.add.reduce(values[self.layout.tail :], dtype=np.float64)
        return sums

    def total(self, values: Floats) -> float:
        """Sum `values`, float32 [n_vocab], without a check for -inf and NaN."""
        return float(self.block_sums(values).sum())
