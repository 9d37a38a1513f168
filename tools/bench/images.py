"""The images of a scenario: pictures that a model is asked about, and their cells in a prompt."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt

from operators.engine.backend.images import ImageCells, Vision
from operators.images.read import pillow

_AREAS = 16
"""Areas of one colour across and down."""


def make_images(vision: Vision, count: int) -> list[bytes]:
    """Return PNGs of `count` different pictures, in the size that the model is given: nobody resizes them."""
    random = np.random.default_rng(0)
    return [_png(_picture(vision, random)) for _ in range(count)]


def image_cells(vision: Vision) -> int:
    """Return the cells of one of them in a prompt."""
    height, width = _picture(vision, np.random.default_rng(0)).shape[:2]
    return sum(part.tokens if isinstance(part, ImageCells) else len(part) for part in vision.layout(width, height))


def _picture(vision: Vision, random: np.random.Generator) -> npt.NDArray[np.uint8]:
    colours = random.integers(0, 256, (_AREAS, _AREAS, 3), np.uint8)
    return vision.resize.apply(np.kron(colours, np.ones((_AREAS * 2, _AREAS * 2, 1), np.uint8)))


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    pillow().fromarray(pixels).save(file, "PNG")
    return file.getvalue()
