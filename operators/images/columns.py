"""How a row's prompt names its pictures: a mark in the text for each, and a column that has them in order."""

from __future__ import annotations

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
