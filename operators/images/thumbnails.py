"""Thumbnails of the images in rows of results, for the report of a run."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from operators.images.columns import IMAGE, MOST_PIXELS
from operators.images.forms import Image, ImageForms, input_folders
from operators.images.read import BadImage, pillow, read_image
from pipeline.api.errors import ConfigError

SIDE = 160
"""Pixels of the longer side in a report, at most."""
MOST = 4
"""Images of a row that are shown."""
QUALITY = 85


def thumbnails(row: Mapping[str, Any], config: Mapping[str, Any], side: int = SIDE) -> dict[str, list[bytes]]:
    """Return JPEG files of the first images of a row, by column. One that cannot be read, and one at a URL, is left
    out.

    Args:
        row: values by column. Of images are structs {bytes, path}, lists of these, and whatever the columns hold that
            the job reads images from.
        config: the job's settings, as its config.yaml has them.
        side: pixels of the longer side, at most.
    """
    data = config.get("data") or {}
    forms = ImageForms(data.get("image_root"), input_folders(data.get("path")))
    most_pixels = data.get("image_max_pixels", MOST_PIXELS)
    named, left = set(_columns(config)), MOST
    found: dict[str, list[bytes]] = {}
    for name, value in row.items():
        if name in named or _is_image(value[0] if isinstance(value, list) and value else value):
            made = [file for image in _images(forms, value)[:left] if (file := _thumbnail(image, most_pixels, side))]
            left -= len(made)
            found |= {name: made} if made else {}
    return found


def _columns(config: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the columns from which the job's nodes read images."""
    yield (config.get("data") or {}).get("image_column")
    for node in config.get("nodes", {}).values():
        yield from node["op"].get("images") or ()


def _is_image(value: object) -> bool:
    return isinstance(value, Mapping) and value.keys() == {field.name for field in IMAGE}


def _images(forms: ImageForms, value: object) -> list[Image]:
    try:
        return forms.images(value)
    except (BadImage, OSError):
        return []


def _thumbnail(image: Image, most_pixels: int, side: int) -> bytes | None:
    try:
        picture = pillow().fromarray(read_image(image, most_pixels))
    except (BadImage, ConfigError, OSError):
        return None
    picture.thumbnail((side, side))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
