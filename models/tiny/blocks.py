"""Training batches of masked blocks, for decode=block_diffusion (Arriola et al. 2025; Cheng et al. 2025, SDAR).

A row stands in its batch twice. Its clean copy is what the text is: a token sees its own block and those before it. Its
noisy copy has masks in the completion, and is what a step of denoising meets: a token sees its own block in it, and the
clean blocks before. What is behind the masks is learnt at the place of the mask itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.tiny.batches import Batch, Coded, View

CLEAN, NOISY, PADDING = 0, 1, 2


@dataclass(frozen=True)
class Noised:
    """A row of whole blocks: `ids` int64, `masked` bool and `weights` float32 (0 where nothing is learnt), each
    [tokens]."""

    ids: NDArray[np.int64]
    masked: NDArray[np.bool_]
    weights: NDArray[np.float32]


def whole_blocks(row: Coded, length: int, filler: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The ids of `row`, filled up with `filler` to a multiple of `length`, and which of them are to be made."""
    ids, start = row
    size = -(-len(ids) // length) * length
    whole = np.full(size, filler, np.int64)
    whole[: len(ids)] = ids
    return whole, np.arange(size) >= start


def at_random(row: Coded, length: int, filler: int, rng: np.random.Generator) -> Noised:
    """Of each block with k tokens to be made some are masked: one to k, each number as likely as the others.

    A block counts as much however many they are. A completion of n tokens weighs sqrt(n): long stories must not drown
    one-word labels.
    """
    ids, made = whole_blocks(row, length, filler)
    masked, weights = np.zeros(len(ids), bool), np.zeros(len(ids), np.float32)
    for begin in range(0, len(ids), length):
        open_ = begin + np.flatnonzero(made[begin : begin + length])
        if len(open_):
            chosen = rng.choice(open_, rng.integers(1, len(open_) + 1), replace=False)
            masked[chosen] = True
            weights[chosen] = len(open_) / len(chosen) * made.sum() ** -0.5
    return Noised(ids, masked, weights)


def from_place(row: Coded, length: int, filler: int, place: int) -> Noised:
    """Masked from `place` (0 to length - 1) of every block on; what stands at that place is what is asked for."""
    ids, made = whole_blocks(row, length, filler)
    places = np.arange(len(ids)) % length
    asked = made & (places == place) & (np.arange(len(ids)) < len(row[0]))
    return Noised(ids, made & (places >= place), asked.astype(np.float32))


def laid_out(rows: Sequence[Noised], length: int, mask: int) -> Batch:
    """Rows as one batch: the clean copy of each, then its noisy one from the first block with a token to be made."""
    firsts = [int(np.flatnonzero(row.masked | (row.weights > 0))[0]) // length * length for row in rows]
    width = max(2 * len(row.ids) - first for row, first in zip(rows, firsts, strict=True))
    ids, positions, targets = (np.zeros((len(rows), width), np.int64) for _ in range(3))
    kinds = np.full((len(rows), width), PADDING)
    weights = np.zeros((len(rows), width), np.float32)
    for index, (row, first) in enumerate(zip(rows, firsts, strict=True)):
        size = len(row.ids)
        clean, noisy = slice(0, size), slice(size, 2 * size - first)
        ids[index, clean], ids[index, noisy] = row.ids, np.where(row.masked, mask, row.ids)[first:]
        positions[index, clean], positions[index, noisy] = np.arange(size), np.arange(first, size)
        kinds[index, clean], kinds[index, noisy] = CLEAN, NOISY
        targets[index, noisy], weights[index, noisy] = row.ids[first:], row.weights[first:]
    return Batch(
        ids, targets, weights, sum(len(row.ids) for row in rows), View(positions, _sees(positions, kinds, length))
    )


def _sees(positions: NDArray[np.int64], kinds: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    """Padding is seen by padding alone."""
    block = positions // length
    query, key = block[:, :, None], block[:, None, :]
    same = kinds[:, :, None] == kinds[:, None, :]
    earlier: NDArray[np.bool_] = (key < query) & (kinds == CLEAN)[:, None, :]
    sees: NDArray[np.bool_] = earlier | ((key == query) & same)
    return sees
