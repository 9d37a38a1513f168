"""Walks the header of a GGUF file before llama.cpp is given it.

llama.cpp makes room for what a file claims to have before it looks whether it is there, and ends the process where a
key that it needs has another type. So a damaged file is found here, in a few milliseconds and without memory.
The format: github.com/ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.api.errors import InputError

VERSIONS = (2, 3)
HEADER_BYTES = 24
MOST_KEYS = 1 << 16
MOST_TENSORS = 1 << 20
MOST_STRINGS = 4 << 20
"""In an array: the largest vocabularies have a tenth of it."""
MOST_KEY_BYTES = 65_535
MOST_DIMENSIONS = 4

STRING, ARRAY, UINT32, INT32, FLOAT32 = 8, 9, 4, 5, 6
SIZES: Mapping[int, int] = {0: 1, 1: 1, 2: 2, 3: 2, UINT32: 4, INT32: 4, FLOAT32: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value by its type; STRING and ARRAY have none of their own."""
TOKENS = b"tokenizer.ggml.tokens"
NEEDED: Mapping[bytes, tuple[int, int | None]] = {
    b"general.alignment": (UINT32, None),
    TOKENS: (ARRAY, STRING),
    b"tokenizer.ggml.merges": (ARRAY, STRING),
    b"tokenizer.ggml.scores": (ARRAY, FLOAT32),
    b"tokenizer.ggml.token_type": (ARRAY, INT32),
}
"""Keys that llama.cpp takes to be of this type, and of this type of items, without looking."""
TYPE, ADAPTER = b"general.type", b"adapter.type"
OTHER_TYPES: Mapping[bytes, str] = {
    b"adapter": "is a LoRA adapter (general.type=adapter), which changes a model: merge it into its model with"
    " llama.cpp's llama-export-lora, and give that file",
    b"mmproj": "is the part of a model that reads images or sounds (general.type=mmproj); give the file of the model",
    b"imatrix": "is an importance matrix (general.type=imatrix); give the file of the model that was made with it",
}
"""Files that are no models."""
ONE_A_TOKEN = (b"tokenizer.ggml.scores", b"tokenizer.ggml.token_type")
_U32, _U64, _COUNTS = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<IQQ")


@dataclass(frozen=True)
class Contents:
    """Names of tensors in a file with their dimensions, the length of a row first, and of arrays in its metadata with
    the number of their items. `tokens_at`: the place of the texts of the tokens in the file; None: it has none."""

    tensors: Mapping[bytes, tuple[int, ...]]
    arrays: Mapping[bytes, int]
    tokens_at: int | None = None


def check_gguf(path: Path) -> Contents:
    """Check that everything which the header of the file claims is in the file; return what it has.

    Raises:
        InputError: it is cut off, damaged, of a version that llama.cpp does not read, or no model.
    """
    if path.stat().st_size < HEADER_BYTES:
        raise InputError(f"{path} ends inside its header; it was not copied or fetched whole")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Walk(path, data).whole()


def tokens_of(path: Path) -> list[bytes]:
    """Return the texts of the tokens in a file, as its tokenizer has them: spaces may be other characters.

    Raises:
        InputError: see check_gguf.
    """
    contents = check_gguf(path)
    if contents.tokens_at is None:
        return []
    found, at = [], contents.tokens_at + _U64.size
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for _ in range(contents.arrays[TOKENS]):
            end = at + _U64.size + _U64.unpack_from(data, at)[0]
            found.append(data[at + _U64.size : end])
            at = end
    return found


class _Walk:
    """A place in the file, which moves to its end; whatever is read is looked for first."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._at = 4
        self._counts: dict[bytes, int] = {}
        self._tokens_at: int | None = None

    def whole(self) -> Contents:
        """Keys and values, then the descriptions of the tensors."""
        version, tensors, keys = _COUNTS.unpack_from(self._data, self._at)
        self._at += _COUNTS.size
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            what = "made for machines of the other byte order" if swapped else f"GGUF version {version}"
            raise InputError(f"{self._path} is {what}; llama.cpp reads versions 2 and 3: convert it again")
        self._limit(keys, MOST_KEYS, "keys")
        self._limit(tensors, MOST_TENSORS, "tensors")
        for _ in range(keys):
            self._pair()
        for key in ONE_A_TOKEN:
            tokens = self._counts.get(TOKENS)
            if key in self._counts and self._counts[key] != tokens:
                raise self._damaged(f"{key.decode()} has {self._counts[key]} values for {tokens} tokens")
        return Contents(dict(self._tensor() for _ in range(tensors)), self._counts, self._tokens_at)

    def _pair(self) -> None:
        key = self._key()
        kind = self._number(_U32)
        item = self._number(_U32) if kind == ARRAY else None
        wanted = NEEDED.get(key)
        if wanted is not None and (kind, item) != wanted:
            raise self._damaged(f"{key.decode()} is of type {kind}, and must be of type {wanted[0]}")
        if item is not None:
            self._tokens_at = self._at if key == TOKENS else self._tokens_at
            self._counts[key] = self._array(item)
        elif key == b"general.alignment":
            alignment = self._number(_U32)
            if alignment < 8 or alignment & (alignment - 1):
                raise self._damaged(f"general.alignment is {alignment}, which is no power of two from 8 up")
        else:
            start = self._at + _U64.size
            self._value(kind)
            given = self._data[start : self._at] if kind == STRING and key == TYPE else b""
            if other := OTHER_TYPES.get(b"adapter" if key == ADAPTER else given):
                raise InputError(f"{self._path} {other}")

    def _key(self) -> bytes:
        length = self._number(_U64)
        self._limit(length, MOST_KEY_BYTES, "bytes of a name")
        start = self._at
        self._skip(length)
        return self._data[start : self._at]

    def _value(self, kind: int) -> None:
        if kind == STRING:
            self._skip(self._number(_U64))
        elif kind in SIZES:
            self._skip(SIZES[kind])
        else:
            raise self._damaged(f"a value of type {kind}, which there is not")

    def _array(self, item: int) -> int:
        count = self._number(_U64)
        if item in SIZES:
            self._skip(count * SIZES[item])
            return count
        if item != STRING:
            raise self._damaged(f"an array of type {item}, which there is not")
        self._limit(count, MOST_STRINGS, "strings in an array")
        data, at, last = self._data, self._at, len(self._data) - 8
        for _ in range(count):
            if at > last:
                break
            at += 8 + _U64.unpack_from(data, at)[0]
        self._at = at
        self._skip(0)
        return count

    def _tensor(self) -> tuple[bytes, tuple[int, ...]]:
        name = self._key()
        dimensions = self._number(_U32)
        self._limit(dimensions, MOST_DIMENSIONS, "dimensions of a tensor")
        lengths = tuple(self._number(_U64) for _ in range(dimensions))
        self._skip(4 + 8)
        return name, lengths

    def _number(self, form: struct.Struct) -> int:
        start = self._at
        self._skip(form.size)
        value: int = form.unpack_from(self._data, start)[0]
        return value

    def _skip(self, size: int) -> None:
        at, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise InputError(
                f"{self._path} claims {size} bytes at byte {at}, and has {len(self._data)} in all:"
                " it is damaged or was not copied or fetched whole"
            )

    def _limit(self, count: int, most: int, what: str) -> None:
        if count > most:
            raise self._damaged(f"{count} {what}, more than {most}")

    def _damaged(self, what: str) -> InputError:
        return InputError(f"{self._path} is damaged before byte {self._at}: {what}; copy, fetch or convert it again")
