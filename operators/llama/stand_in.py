"""A file with the header of a large model, few of its layers and no weights, in which llama.cpp can be tried."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from operators.llama.gguf_check import ARCHITECTURE, FORMS, Contents, Tensor, Value, check_gguf

_LAYER = re.compile(rb"(blk|enc\.blk|dec\.blk)\.(\d+)\.(.+)", re.DOTALL)
_ALIGNMENT = 32
_NOT_KEPT = (b"split.", b"general.alignment")
_LEAST_LAYERS = 2


def write_stand_in(parts: Sequence[Path], target: Path) -> bool:
    """Write a stand-in of the model in `parts`: its keys, and the tensors of its first layers, as many as have one of
    each kind. The weights are a hole in the file, which reads as zeros and takes no room.

    Returns: whether that makes the model smaller; if not, nothing is written.
    """
    contents = [check_gguf(part) for part in parts]
    with parts[0].open("rb") as file:
        head = file.read(contents[0].end)
    values = contents[0].values
    name = _text(values.get(ARCHITECTURE)) + b".block_count"
    layers = values[name].scalar if name in values else 0
    if not isinstance(layers, int) or (kept := _kept_layers(contents, layers, head)) * 2 > layers:
        return False
    keys = []
    for key, value in values.items():
        pair = head[value.start : value.end]
        if key == name:
            pair = head[value.start : value.at] + FORMS[value.kind].pack(kept)
        elif value.n_items == layers and value.kind in FORMS:  # a value a layer
            size = FORMS[value.kind].size
            pair = head[value.start : value.at - 8] + struct.pack("<Q", kept) + head[value.at : value.at + kept * size]
        if not key.startswith(_NOT_KEPT):
            keys.append(pair)
    infos, at = [], 0
    for part, each in zip(parts, contents, strict=True):
        sizes = _sizes(each, part.stat().st_size)
        for tensor_name, tensor in each.tensors.items():
            found = _LAYER.fullmatch(tensor_name)
            if found is None or int(found[2]) < kept:
                infos.append(_info(tensor_name, tensor, at))
                at += -(-sizes[tensor_name] // _ALIGNMENT) * _ALIGNMENT
    counts = struct.pack("<4sIQQ", b"GGUF", 3, len(infos), len(keys))
    header = counts + b"".join([*keys, *infos])
    with target.open("wb") as file:
        file.write(header)
        file.truncate(-(-len(header) // _ALIGNMENT) * _ALIGNMENT + at)
    return True


def _text(value: Value | None) -> bytes:
    return value.scalar if value is not None and isinstance(value.scalar, bytes) else b""


def _kept_layers(contents: Sequence[Contents], layers: int, head: bytes) -> int:
    """Count the layers up to the first of the last kind: layers are of a kind that have the same tensors and values."""
    kinds: list[set[object]] = [set() for _ in range(layers)]
    for each in contents:
        for name, tensor in each.tensors.items():
            found = _LAYER.fullmatch(name)
            if found is not None and int(found[2]) < layers:
                kinds[int(found[2])].add((found[1], found[3], tensor.lengths, tensor.kind))
    for key, value in contents[0].values.items():
        if value.n_items == layers and value.kind in FORMS:
            size = FORMS[value.kind].size
            for layer, kind in enumerate(kinds):
                kind.add((key, head[value.at + layer * size : value.at + (layer + 1) * size]))
    return max([_LEAST_LAYERS, *(kinds.index(kind) + 1 for kind in kinds)])


def _sizes(contents: Contents, file_size: int) -> Mapping[bytes, int]:
    """Return the bytes of each tensor of a file: those up to the next one, or to the end."""
    placed = sorted(contents.tensors.items(), key=lambda item: item[1].offset)
    ends = [tensor.offset for _, tensor in placed[1:]] + [file_size - contents.end]
    return {name: max(end - tensor.offset, 0) for (name, tensor), end in zip(placed, ends, strict=True)}


def _info(name: bytes, tensor: Tensor, at: int) -> bytes:
    counts = struct.pack(f"<I{len(tensor.lengths)}Q", len(tensor.lengths), *tensor.lengths)
    return struct.pack("<Q", len(name)) + name + counts + struct.pack("<IQ", tensor.kind, at)
