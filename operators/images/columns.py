"""The mark of an image in the text of a prompt, and the column that has the images in the order of the marks."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

IMAGE_MARK = "\ufdd1"
"""Stands for one picture in `prompt_text`. Unicode keeps it for programs (a noncharacter), so no text of a row may have
it; a row whose own text does is a reject."""

SHOWN_IMAGE = "<image>"
"""What is shown and written in its place."""

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""A picture: the bytes of its file, or, where those are null, the absolute path of a local file. As Hugging Face's
datasets have pictures; with bytes the path is only a name."""

PROMPT_IMAGES = pa.field("prompt_images", pa.list_(IMAGE))
"""The pictures of a row's prompt, in the order of its marks; null without any."""

MOST_PIXELS = 64_000_000
"""Of an image where nobody says otherwise (data.image_max_pixels)."""
_LIMIT, _OF_COLUMNS, _COLUMNS = b"most_pixels", b"of_columns", b"columns"


def limited(field: pa.Field, most_pixels: int, *, of_columns: bool, columns: Sequence[str] = ()) -> pa.Field:
    """Return a field of images with the limit of their pixels, whether columns of the job have them, and not only parts
    of messages, and these `columns`, if all are of them."""
    named = {_OF_COLUMNS: "true"} if of_columns else {}
    if columns:
        named[_COLUMNS] = f"column{'s' * (len(columns) > 1)} {', '.join(map(repr, columns))}: "
    return field.with_metadata({_LIMIT: str(most_pixels), **named})


def title_of(field: pa.Field, number: int, count: int) -> str:
    """Return what the reason of a reject begins with: the columns, if they are known, and which of its images it is.

    Args:
        field: as `limited` marks it.
        number: of the image, from 1, of `count` in the prompt.
    """
    columns: str = (field.metadata or {}).get(_COLUMNS, b"").decode()
    return f"{columns}image {number} of {count}: " if count > 1 else columns


def is_of_prompts(field: pa.Field) -> bool:
    """Return whether a field holds images of prompts, as `limited` marks it: a column of the input may be named so."""
    return _LIMIT in (field.metadata or {})


def has_prompt_images(schema: pa.Schema, name: str = PROMPT_IMAGES.name) -> bool:
    """Return whether column `name` is there and holds images of prompts."""
    return name in schema.names and is_of_prompts(schema.field(name))


def most_pixels(field: pa.Field) -> int:
    """Return the limit of the pixels of images in a column."""
    return int((field.metadata or {}).get(_LIMIT, MOST_PIXELS))


def are_of_columns(field: pa.Field) -> bool:
    """Return whether columns of the job have the images."""
    return _OF_COLUMNS in (field.metadata or {})
