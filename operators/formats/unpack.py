"""The content of a file that is compressed as a whole, as a stream: gzip, zstd, bzip2 and xz.

Several archives one behind another are one content, and zeros behind an archive, with which tapes and blocks are filled
up, are no part of it (of zstd they are damage). Anything else behind one is damage, too: Python's own readers of bzip2
and xz would pass over an archive whose first bytes are damaged.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import pyarrow as pa

NO_COMPRESSION = "none"
CODECS: Mapping[str, str] = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
"""Compression by the last extension of a file."""
PACKED_BYTES = 1 << 16
DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""What a stream raises for an archive that is damaged or cut off; an OSError with a number is one of the disk."""
_MAKERS: Mapping[str, Callable[[], Any]] = {"bzip2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor}


def unpack(raw: io.BufferedReader, codec: str) -> Any:
    """Return the unbuffered stream of what `raw` holds, compressed by `codec`."""
    if codec == "gzip":  # of Arrow's and Python's only Python's takes zeros behind an archive
        return gzip.GzipFile(fileobj=raw)
    return _Unpacked(raw, _MAKERS[codec]) if codec in _MAKERS else pa.CompressedInputStream(pa.PythonFile(raw), codec)


class _Unpacked(io.RawIOBase):
    """Unpacks archives one behind another, each with a decompressor of Python's that `make` makes."""

    def __init__(self, raw: io.BufferedReader, make: Callable[[], Any]) -> None:
        super().__init__()
        self._raw = raw
        self._make = make
        self._archive = make()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            packed = b""
            if self._archive.eof:
                packed = self._archive.unused_data.lstrip(b"\0")
                while not packed:
                    if not (packed := self._raw.read(PACKED_BYTES)):
                        return 0
                    packed = packed.lstrip(b"\0")
                self._archive = self._make()
            elif self._archive.needs_input and not (packed := self._raw.read(PACKED_BYTES)):
                raise EOFError("Compressed file ended before the end of its content")
            if data := self._archive.decompress(packed, len(buffer)):
                buffer[: len(data)] = data
                return len(data)


def packed(content: bytes | memoryview, file: BinaryIO, compression: str, level: int | None) -> None:
    """Write `content`, compressed as a whole. Equal contents give equal bytes."""
    if compression == NO_COMPRESSION:
        file.write(content)
    else:  # Arrow's gzip header has neither a time nor a name
        file.write(pa.Codec(compression, compression_level=level).compress(content))
