"""The encoding of a text file: which names there are, what a file's first bytes say, and its text as UTF-8.

Readers take UTF-8. A file of another encoding is decoded as it is read, and bytes that its encoding has not become
bytes that UTF-8 has not: their row is a bad one, and never one with another text.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Mapping
from encodings.aliases import aliases
from typing import Any, BinaryIO

from pipeline.api.errors import did_you_mean

UTF_8 = "utf-8"
UTF_16 = {"utf-16", "utf-32"}
"""Encodings whose files say the order of bytes by a mark."""
MARKS: Mapping[bytes, str] = {
    codecs.BOM_UTF8: UTF_8,
    codecs.BOM_UTF32_LE: "utf-32",  # which begins as UTF-16 does
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""The encodings by the mark (BOM) that a file begins with."""
NAMES = 'it is null (UTF-8, or what a mark says) or a name of Python\'s: cp1252 (Windows, "ANSI"), latin-1, utf-16 ...'
COMMON = ("cp1252", "latin-1", "utf-8", "utf-16")
CHUNK_BYTES = 1 << 16
_NO_FILES = {"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"}
_BAD_BYTES = "bad bytes"


def is_encoding(name: str) -> bool:
    """Return True for the name of an encoding of texts."""
    try:
        b"a".decode(name, "replace")
        return codecs.lookup(name).name.replace("_", "-") not in _NO_FILES
    except (LookupError, ValueError):
        return False


def near(name: str) -> str:
    """Return the end of a message about a name that is none."""
    known = sorted({alias.replace("_", "-") for alias in (*aliases, *aliases.values()) if is_encoding(alias)})
    wrong, key = name.lower(), "data.encoding="
    return did_you_mean(wrong, COMMON, key) or did_you_mean(wrong, known, key)


def encoding_of(head: bytes, named: str | None) -> tuple[str, bool]:
    """Return the encoding of a file, by its first bytes and `data.encoding`, and whether it was guessed.

    A mark counts before a name: nothing else begins so. UTF-16 without one is known by Latin-1 in it (`_is_utf_16`).

    Raises:
        ValueError: the order of bytes is neither said nor to be seen.
    """
    if marked := next((encoding for mark, encoding in MARKS.items() if head.startswith(mark)), None):
        return marked, False
    name = UTF_8 if named is None else codecs.lookup(named).name.removesuffix("-sig")
    if named is not None and name not in UTF_16:
        return name, False
    if name != "utf-32" and b"\0" in head:
        for order, low, high in (("utf-16-le", head[::2], head[1::2]), ("utf-16-be", head[1::2], head[::2])):
            if _is_utf_16(low, high):
                return order, True
    if name in UTF_16 and head:
        raise ValueError(f"it has no mark (BOM); write data.encoding={name}-le or {name}-be")
    return name, False


def _is_utf_16(low: bytes, high: bytes) -> bool:
    """Return True if nearly all zeros of a text, with the halves of its characters in `low` and `high`, are those of
    Latin-1 in UTF-16, and most of it is Latin-1 or each line break is."""
    pairs = [first for first, second in zip(low, high, strict=False) if second == 0 < first]
    zeros, breaks = low.count(0) + high.count(0), low.count(10) + high.count(10)
    return 4 * len(pairs) >= 3 * zeros and (2 * len(pairs) > len(low) or pairs.count(10) == breaks > 0)


def not_of(encoding: str, what: object) -> str:
    """Return the reason to reject a text that is not of the encoding of its file, with what to do."""
    remedy = "data.encoding=cp1252 reads texts of Windows and Latin-1" if encoding == UTF_8 else "name another encoding"
    return f"is not {encoding.upper()}: {what}; {remedy}, or convert the file to UTF-8"


class Utf8Stream(io.RawIOBase):
    """The text of `content`, which is in `encoding`, as UTF-8."""

    def __init__(self, content: BinaryIO, encoding: str) -> None:
        super().__init__()
        self._content = content
        self._decoder = codecs.getincrementaldecoder(encoding)(_BAD_BYTES)
        self._ready = memoryview(b"")
        self._is_read = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self._is_read:
            data = self._content.read(CHUNK_BYTES)
            self._is_read = not data
            text = self._decoder.decode(data, final=self._is_read)
            self._ready = memoryview(text.encode(errors=_BAD_BYTES))
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


def _mark_bad(error: UnicodeError) -> tuple[str | bytes, int]:
    """Stand for bytes that an encoding has not by half characters, and for these by bytes that UTF-8 has not: the same,
    or FF for one that could end a line or begin a character of UTF-8."""
    if isinstance(error, UnicodeDecodeError):
        bad = error.object[error.start : error.end]
        return "".join(chr(0xDC00 + byte) for byte in bad), error.end
    if isinstance(error, UnicodeEncodeError):
        halves = map(ord, error.object[error.start : error.end])
        return bytes(half & 0xFF if 0xDC80 <= half < 0xDCC0 else 0xFF for half in halves), error.end
    raise error


codecs.register_error(_BAD_BYTES, _mark_bad)
