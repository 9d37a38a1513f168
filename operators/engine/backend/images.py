"""The images of a prompt: what stands for one there, and what an encoder makes of it, as the engine knows both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
"""[height, width, 3], RGB."""


@dataclass(frozen=True, slots=True)
class ImageCells:
    """A block of an image in a prompt, which is computed whole.

    Args:
        tokens: its cells of the KV cache.
        positions: by how many the position of what follows it is higher; fewer than `tokens` with M-RoPE.
    """

    tokens: int
    positions: int


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A block of an image, encoded.

    Args:
        embeddings: float32 [tokens, width].
        offsets: int32 [4, tokens]: M-RoPE's positions of each cell (time, row, column, 0), in a block that begins at
            0; None: each cell has the next position, as tokens have.
        positions: see ImageCells.
    """

    embeddings: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.int32] | None
    positions: int


@dataclass(frozen=True, slots=True, eq=False)
class ImageSpan:
    """A block of an image at its place in a prompt.

    Args:
        start: cells before it.
        cells: of the block.
        encode: returns the block, encoded. Raises ValueError if the image cannot be read (any more) or encoded.
    """

    start: int
    cells: int
    encode: Callable[[], Encoded]


class ImageSizes(Protocol):
    """How the training of a model resized images."""

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height that an image of this size is given to the model in."""

    def apply(self, pixels: Pixels) -> Pixels:
        """Return the image in that size; unchanged if it has it."""


class Vision(Protocol):
    """The part of a model that reads images. Any thread may ask for a layout, also while another encodes."""

    fingerprint: str
    """Equal for equal content of its file, and equal limits of tokens."""
    width: int
    """Numbers of a cell: those that the model takes in, which may be more than its embeddings have."""
    causal: bool
    """False if the cells of a block see each other, so that a call must have room for all of them."""
    apart: str
    """Text before and behind each image in a prompt, as in its training."""

    @property
    def resize(self) -> ImageSizes:
        """How its images have to come."""

    def layout(self, width: int, height: int) -> tuple[npt.NDArray[np.int32] | ImageCells, ...]:
        """Return what stands in a prompt for a resized image of this size: int32 token ids, and blocks of cells."""

    def encode(self, pixels: Pixels) -> list[Encoded]:
        """Encode a resized image: one for each ImageCells of its layout, in this order. Raises ValueError if this image
        cannot be encoded."""

    def close(self) -> None:
        """Free it. The model that it belongs to is closed after it."""
