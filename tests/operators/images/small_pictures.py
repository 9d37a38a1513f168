"""Small pictures in each format that is read, and how a test has one read or refused."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from operators.images.read import BadImage, read_image
from tests.operators.images.files import MOST, encoded, pixels

PICTURE = pixels(40, 30)
LOSSLESS = {"PNG": {}, "BMP": {}, "TIFF": {}, "WEBP": {"lossless": True}}
FILES = {
    **{kind: encoded(PICTURE, kind, **options) for kind, options in LOSSLESS.items()},
    "JPEG": encoded(PICTURE, "JPEG", quality=95),
    "GIF": encoded(Image.fromarray(PICTURE).quantize(256), "GIF"),
}


def frames() -> list[Image.Image]:
    """Make pictures anew: one that was saved keeps how."""
    return [Image.fromarray(pixels(16, 12, seed)) for seed in range(3)]


def of_bytes(data: bytes, path: str | None = None) -> dict[str, object]:
    return {"bytes": data, "path": path}


def read(data: bytes, most: int = MOST) -> np.ndarray:
    return read_image(of_bytes(data), most)


def refused(data: bytes, most: int = MOST) -> str:
    """Return why a picture is not read."""
    with pytest.raises(BadImage) as why:
        read(data, most)
    return str(why.value)
