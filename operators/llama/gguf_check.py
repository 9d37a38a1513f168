"""Walks the header of a GGUF file before llama.cpp is given it.

llama.cpp makes room for what a file claims to have before it looks whether it is there, and ends the process where a
key that it needs has another type. So a damaged file is found here, in a few milliseconds and without memory.
What only llama.cpp can tell of a file tells probe.py. The format: github.com/ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import functools
import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
FORMS: Mapping[int, struct.Struct] = {
    kind: struct.Struct(f"<{form}")
    for kind, form in {0: "B", 1: "b", 2: "H", 3: "h", 7: "B", 10: "Q", 11: "q", 12: "d"}.items()
    | {UINT32: "I", INT32: "i", FLOAT32: "f"}.items()
}
"""A number by its type; STRING and ARRAY are none."""
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
    b"adapter": "is a LoRA adapter (general.type=adapter), which changes a model: give the file of that model,"
    " and the adapter in model.adapters",
    b"mmproj": "is the part of a model that reads images or sounds (general.type=mmproj); give the file of the model,"
    " and this one in model.mmproj",
    b"imatrix": "is an importance matrix (general.type=imatrix); give the file of the model that was made with it",
}
"""Files that are no models."""
ARCHITECTURE = b"general.architecture"
MOST_LAYERS, MOST_EXPERTS = 512, 1024
"""LLAMA_MAX_LAYERS and LLAMA_MAX_EXPERTS, beyond which llama.cpp ends the process."""
ONE_A_TOKEN = (b"tokenizer.ggml.scores", b"tokenizer.ggml.token_type")
_U32, _U64, _COUNTS = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<IQQ")


class Value(NamedTuple):
    """A key's value. The key begins at byte `start` of the file, the value itself (of an array its items) goes from
    `at` to `end`. `kind`: its type, or its items'; `n_items`: of an array. `scalar`: a number or text, None for arrays.
    """

    start: int
    at: int
    end: int
    kind: int
    n_items: int | None
    scalar: float | bytes | None


class Tensor(NamedTuple):
    """Dimensions, the length of a row first, type, and place behind the beginning of the data."""

    lengths: tuple[int, ...]
    kind: int
    offset: int


class Contents(NamedTuple):
    """What a file has. `end`: the bytes of its header."""

    values: Mapping[bytes, Value]
    tensors: Mapping[bytes, Tensor]
    end: int


def check_gguf(path: Path, *, model: bool = True) -> Contents:
    """Check that everything which the header of the file claims is in the file; return what it has. Cached until the
    size or modification time of the file changes.

    Args:
        model: refuse files of other kinds, such as adapters.

    Raises:
        InputError: it is cut off, damaged, of a version that llama.cpp does not read, or no model.
    """
    status = path.stat()
    return _checked(path, status.st_size, status.st_mtime_ns, model)


@functools.lru_cache(maxsize=16)
def _checked(path: Path, size: int, changed: int, model: bool) -> Contents:
    if size < HEADER_BYTES:
        raise InputError(f"{path} ends inside its header; it was not copied or fetched whole")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Walk(path, data, model=model).whole()


def tokens_of(path: Path) -> list[bytes]:
    """Return the texts of the tokens in a file, as its tokenizer has them: spaces may be other characters. Raises
    InputError: see check_gguf."""
    tokens = check_gguf(path).values.get(TOKENS)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return list(strings(data, tokens))


def strings(data: mmap.mmap, array: Value | None) -> Iterator[bytes]:
    """Yield the items of an array of strings; none if there is no array."""
    at = array.at if array else 0
    for _ in range((array and array.n_items) or 0):
        end = at + _U64.size + _U64.unpack_from(data, at)[0]
        yield data[at + _U64.size : end]
        at = end


class _Walk:
    """A place in the file, which moves to its end; whatever is read is looked for first."""

    def __init__(self, path: Path, data: mmap.mmap, *, model: bool) -> None:
        self._path = path
        self._data = data
        self._model = model
        self._at = 4
        self._values: dict[bytes, Value] = {}

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
        self._check_values()
        counts = {key: self._values[key].n_items for key in (TOKENS, *ONE_A_TOKEN) if key in self._values}
        for key, count in counts.items():
            if count != counts.get(TOKENS):
                raise self._damaged(f"{key.decode()} has {count} values for {counts.get(TOKENS, 'no')} tokens")
        return Contents(self._values, self._tensors(tensors), self._at)

    def _pair(self) -> None:
        start = self._at
        key = self._key()
        if key in self._values:
            raise self._damaged(f"it has the key {key.decode('utf-8', 'replace')} twice")
        kind = self._number(_U32)
        item = self._number(_U32) if kind == ARRAY else None
        wanted = NEEDED.get(key)
        if wanted is not None and (kind, item) != wanted:
            raise self._damaged(f"{key.decode()} is of type {kind}, and must be of type {wanted[0]}")
        if item is not None:
            count = self._number(_U64)
            at = self._at
            self._items(item, count)
            self._values[key] = Value(start, at, self._at, item, count, None)
            return
        at = self._at
        scalar = self._value(kind)
        self._values[key] = Value(start, at, self._at, kind, None, scalar)
        if key == b"general.alignment" and (scalar < 8 or scalar & (scalar - 1)):
            raise self._damaged(f"general.alignment is {scalar}, which is no power of two from 8 up")
        other = OTHER_TYPES.get(b"adapter" if key == ADAPTER else scalar if key == TYPE else b"")
        if other and self._model:
            raise InputError(f"{self._path} {other}")

    def _key(self) -> bytes:
        length = self._number(_U64)
        self._limit(length, MOST_KEY_BYTES, "bytes of a name")
        start = self._at
        self._skip(length)
        return self._data[start : self._at]

    def _value(self, kind: int) -> Any:
        if kind in FORMS:
            return self._number(FORMS[kind])
        if kind != STRING:
            raise self._damaged(f"a value of type {kind}, which there is not")
        length = self._number(_U64)
        self._skip(length)
        return self._data[self._at - length : self._at]

    def _items(self, item: int, count: int) -> None:
        if item in FORMS:
            self._skip(count * FORMS[item].size)
            return
        if item != STRING:
            raise self._damaged(f"an array of type {item}, which there is not")
        self._limit(count, MOST_STRINGS, "strings in an array")
        data, at, last = self._data, self._at, len(self._data) - 8
        for _ in range(count):
            if at > last:
                raise InputError(f"{self._path} ends inside {count} strings; it was not copied or fetched whole")
            at += 8 + _U64.unpack_from(data, at)[0]
        self._at = at
        self._skip(0)

    def _check_values(self) -> None:
        """Check values for which llama.cpp ends the process instead of refusing the file."""
        scalar = self._values[ARCHITECTURE].scalar if ARCHITECTURE in self._values else None
        prefix = scalar + b"." if isinstance(scalar, bytes) else b"."
        scalars = {
            key.removeprefix(prefix): entry.scalar for key, entry in self._values.items() if key.startswith(prefix)
        }
        numbers = {key: value for key, value in scalars.items() if isinstance(value, (int, float))}
        experts = numbers.get(b"expert_count", 0)
        bounds: dict[bytes, tuple[float, float]] = {
            b"block_count": (1, MOST_LAYERS),
            b"expert_count": (0, MOST_EXPERTS),
            b"context_length": (1, (1 << 31) - 1),
            **{key: (0, 1) for key in numbers if key.endswith(b"epsilon")},
        }
        if not prefix.startswith(b"hunyuan"):  # some say that they use one expert of none
            bounds[b"expert_used_count"] = (min(experts, 1), experts)
        for key, (least, most) in bounds.items():
            value = numbers.get(key, least)
            if not least <= value <= most:
                name = (prefix + key).decode("utf-8", "replace")
                raise self._damaged(f"{name} is {value}, and must be from {least:g} to {most}")
        tokens: dict[bytes, int] = {}
        for number, token in enumerate(strings(self._data, self._values.get(TOKENS))):
            if (first := tokens.setdefault(token or b"[EMPTY_%d]" % number, number)) != number:
                text = token.decode("utf-8", "replace")
                raise self._damaged(f"{TOKENS.decode()} has the same text, {text!r}, for {first} and {number}")

    def _tensors(self, count: int) -> dict[bytes, Tensor]:
        tensors: dict[bytes, Tensor] = {}
        for _ in range(count):
            name, tensor = self._tensor()
            if name in tensors:
                raise self._damaged(f"it has the tensor {name.decode('utf-8', 'replace')} twice")
            tensors[name] = tensor
        return tensors

    def _tensor(self) -> tuple[bytes, Tensor]:
        name = self._key()
        dimensions = self._number(_U32)
        self._limit(dimensions, MOST_DIMENSIONS, "dimensions of a tensor")
        lengths = tuple(self._number(_U64) for _ in range(dimensions))
        return name, Tensor(lengths, self._number(_U32), self._number(_U64))

    def _number(self, form: struct.Struct) -> Any:
        start = self._at
        self._skip(form.size)
        return form.unpack_from(self._data, start)[0]

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
