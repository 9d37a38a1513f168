"""Pictures as files, made in memory."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

MOST = 1_000_000
"""Pixels that the tests allow a picture."""


def pixels(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Make a picture of ramps and some noise, of whole numbers alone: uint8 [height, width, 3]."""
    y, x = np.mgrid[0:height, 0:width]
    ramps = [np.abs((x * (4 + c) + y * (9 - 3 * c) + 31 * seed) % 256 - 128) + 60 for c in range(3)]
    noise = np.random.default_rng(seed).integers(0, 24, (height, width, 3))
    return (np.stack(ramps, axis=2) + noise).astype(np.uint8)


def encoded(picture: Any, kind: str, **options: Any) -> bytes:
    """Write a PIL image, or pixels, as a file of a format of Pillow's."""
    if isinstance(picture, np.ndarray):
        picture = Image.fromarray(picture)
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def png(width: int, height: int, depth: int, color: int, rows: bytes = b"", more: bytes = b"") -> bytes:
    """Write a PNG by hand: its header may say what Pillow would not write. `rows`: with a filter's byte before each."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + chunks[0] + more + chunks[1] + chunks[2]


def tagged_tiff(tags: dict[int, tuple[int, int]], data: bytes = b"") -> bytes:
    """Write a TIFF by hand, of `tags`: number to (type, value); `data` begins at byte 8."""
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, (kind, value) in sorted(tags.items()))
    directory = struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)
    return b"II*\x00" + struct.pack("<I", 8 + len(data)) + data + directory
