"""Images among the rows of a Python program: those of Pillow become the content of a file."""

from __future__ import annotations

import base64
import io
import sys
from importlib import import_module
from typing import Any

from pipeline.api.errors import ConfigError

_PNG = ("1", "L", "LA", "P", "RGB", "RGBA")
"""Modes of Pillow that are written as PNG; others are written as TIFF."""
GIVE_PILLOWS = "give an image as PIL.Image.fromarray(array), as the bytes of a file, or as a path"


def as_file(value: Any) -> Any:
    """Return a value of a row with {bytes, path} in the place of an image of Pillow, also in a list. Raises ConfigError
    for an image that cannot be written, and for an array of pixels."""
    if isinstance(value, list | tuple):  # all are images, or none
        first = next((item for item in value if item is not None), None)
        return [as_file(item) for item in value] if _is_image(first) else value
    if getattr(value, "ndim", 0) == 3 and str(getattr(value, "dtype", "")) == "uint8":
        raise ConfigError(f"rows have an array of pixels {value.shape}; {GIVE_PILLOWS}")
    return {"bytes": _content(value), "path": None} if _is_image(value) else value


def as_data_url(value: Any) -> str:
    """Return an image of Pillow as a `data:` URL, for JSON. Raises TypeError for any other value."""
    if not _is_image(value):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return f"data:image/png;base64,{base64.b64encode(_content(value)).decode()}"


def bytes_in(value: Any) -> int:
    """Return the bytes of an image in a value of a row, or of images in a list."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, list) and value and isinstance(value[0], bytes | dict):
        return sum(map(bytes_in, value))
    return bytes_in(value.get("bytes")) if isinstance(value, dict) else 0


def _is_image(value: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def _content(image: Any) -> bytes:
    """Return an image, turned as its EXIF says, as a file without losses."""
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise ConfigError(
            f"rows have an animation ({image.format}) as an image; give its frames, as images of their own"
        )
    file = io.BytesIO()
    try:
        upright = import_module("PIL.ImageOps").exif_transpose(image)
        if image.mode in _PNG:
            upright.save(file, "PNG", compress_level=1)
        else:
            upright.save(file, "TIFF")
    except Exception as error:  # of Pillow, which has read only the header until now
        name = getattr(image, "filename", "") or f"{image.width} x {image.height}, {image.mode}"
        raise ConfigError(f"rows have an image ({name}) that cannot be written as a file: {error}") from error
    return file.getvalue()
