"""FakeVision: reads images without weights; what it makes of them depends on every pixel."""

from __future__ import annotations

import zlib

import numpy as np

from operators.engine.backend.images import Encoded, ImageCells, Pixels
from operators.engine.backend.interface import TokenIds

BEGIN_ID, BETWEEN_ID, END_ID = 260, 261, 262
WIDTH = 2
_CELL = 16
"""Pixels of a side of a cell."""
_LARGE = 128
"""Images that are as wide have two blocks, with a token between them."""


class WholeCells:
    """Cuts images to whole cells, in place of resizing."""

    def size(self, width: int, height: int) -> tuple[int, int]:
        return max(width // _CELL, 1) * _CELL, max(height // _CELL, 1) * _CELL

    def apply(self, pixels: Pixels) -> Pixels:
        width, height = self.size(pixels.shape[1], pixels.shape[0])
        return np.resize(pixels[:height, :width], (height, width, 3))


class FakeVision:
    """Implements operators.engine.backend.images.Vision; `fingerprint` says which it is."""

    width = WIDTH
    causal = True
    apart = ""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.resize = WholeCells()
        self.encoded = 0
        """How many images it has encoded."""

    def layout(self, width: int, height: int) -> tuple[TokenIds | ImageCells, ...]:
        cells = ImageCells(*2 * [(width // _CELL) * (height // _CELL)])
        between = (np.array([BETWEEN_ID], np.int32), cells) if width >= _LARGE else ()
        return np.array([BEGIN_ID], np.int32), cells, *between, np.array([END_ID], np.int32)

    def encode(self, pixels: Pixels) -> list[Encoded]:
        self.encoded += 1
        blocks = [part for part in self.layout(pixels.shape[1], pixels.shape[0]) if isinstance(part, ImageCells)]
        content = zlib.crc32(self.fingerprint.encode(), zlib.crc32(pixels.tobytes())) >> 8  # a float holds it
        return [
            Encoded(
                np.stack([np.full(block.tokens, content + number), np.arange(block.tokens)], 1, dtype=np.float32),
                None,
                block.positions,
            )
            for number, block in enumerate(blocks)
        ]

    def close(self) -> None:
        """Do nothing: there is no memory to free."""
