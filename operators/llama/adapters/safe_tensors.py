"""Reads the header of a safetensors file: a length, JSON with a place for each tensor, and the data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType

from operators.llama.adapters.tensors import AdapterMatrix, AdapterSource

_KINDS: Mapping[str, tuple[GGMLQuantizationType, int]] = {
    "F32": (GGMLQuantizationType.F32, 4),
    "F16": (GGMLQuantizationType.F16, 2),
    "BF16": (GGMLQuantizationType.BF16, 2),
}
"""Types that are read, and their bytes."""
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100 << 20
_AGAIN = "it was not copied or fetched whole, or is damaged; copy, fetch or save it again"


def read_safe_tensors(source: AdapterSource, path: Path) -> dict[str, AdapterMatrix]:
    """Return the tensors of a file by name, without their data. Raises InputError if it is damaged, or of types that
    are not read."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > min(_MOST_HEADER_BYTES, size - _LENGTH_BYTES):
            raise source.error(f"ends inside its header: {_AGAIN}", path)
        text = file.read(length)
    try:
        entries = json.loads(text, object_pairs_hook=_once)
        entries.pop("__metadata__", None)
        found = {name: _tensor(source, path, name, entry, _LENGTH_BYTES + length) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise source.error(f"has a header that is no header of safetensors ({error}): {_AGAIN}", path) from error
    at = _LENGTH_BYTES + length
    for tensor in sorted(found.values(), key=lambda tensor: tensor.offset):
        end = tensor.offset + math.prod(tensor.stored) * _KINDS[GGMLQuantizationType(tensor.kind).name][1]
        if tensor.offset != at or end > size:
            raise source.error(f"has {tensor.label} from byte {tensor.offset:,} to {end:,} of {size:,}: {_AGAIN}", path)
        at = end
    if at != size:
        raise source.error(f"has {size - at:,} bytes behind its tensors: {_AGAIN}", path)
    return found


def _tensor(source: AdapterSource, path: Path, name: str, entry: Mapping[str, Any], start: int) -> AdapterMatrix:
    if entry["dtype"] not in _KINDS:
        raise source.error(
            f"has {name} in {entry['dtype']}, and {', '.join(_KINDS)} are read: save the adapter in one of them", path
        )
    kind, n_bytes = _KINDS[entry["dtype"]]
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(isinstance(number, int) and number >= 0 for number in (begin, end, *shape)):
        raise ValueError(f"{name} has no place")
    if end - begin != math.prod(shape) * n_bytes:
        raise ValueError(f"{name} has {end - begin} bytes for the shape {list(shape)}")
    return AdapterMatrix(name, path, int(kind), start + begin, shape)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found
