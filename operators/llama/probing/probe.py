"""Tries a model file in a process that may die, before llama.cpp is given it in this one.

gguf_check.py knows some of the values for which llama.cpp ends the process. There are hundreds, and each version has
others; so each file is loaded once by a child (probe_child.py), which decodes two tokens. What passed is noted in the
user's cache by its header and size, and costs nothing after that.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import llama_cpp

from operators.llama.gguf_check import ARCHITECTURE, FORMS, Contents, Tensor, check_gguf
from operators.llama.header import HEAD_TENSORS, REFUSED, parts_of
from operators.llama.probing.probe_child import REFUSED as IS_REFUSED
from operators.llama.probing.trial import build_record
from pipeline.api.errors import ConfigError, InputError
from pipeline.system.file_cache import cache_folder
from pipeline.system.machine import free_memory

WHOLE_BYTES = 1 << 30
"""A larger model has a stand-in, a file with its header, few of its layers and no weights: to read it a second time
would take seconds."""
TIMEOUT_S = 300
_CHILD = Path(__file__).with_name("probe_child.py")
_TELLING = ("GGML_ASSERT", "what():", "error", "fail", "invalid")
_LAYER = re.compile(rb"(blk|enc\.blk|dec\.blk)\.(\d+)\.(.+)", re.DOTALL)
_ALIGNMENT = 32
_NOT_KEPT = (b"split.", b"general.alignment")
_LEAST_LAYERS = 2
log = logging.getLogger(__name__)


def probe(path: Path) -> str | None:
    """Try the model whose first part is `path`; see the module. Cached until a file of it changes.

    Returns: why llama.cpp refuses to load it; None if it loads it.

    Raises:
        InputError: a file of it is damaged, or it ends llama.cpp.
        ConfigError: it could not be tried.
    """
    parts = parts_of(path)
    return _probe(tuple(parts), tuple((status.st_size, status.st_mtime_ns) for status in map(Path.stat, parts)))


@functools.lru_cache(maxsize=64)
def _probe(parts: tuple[Path, ...], states: tuple[tuple[int, int], ...]) -> str | None:
    note = cache_folder() / "tried" / _key(parts)
    if note.exists():
        return None
    size = sum(size for size, _ in states)
    refusal = _with_stand_in(parts) if size > min(WHOLE_BYTES, free_memory()) else _tried(parts[0], parts[0])
    if refusal is None:
        _write_note(note)
    return refusal


def _write_note(note: Path) -> None:
    with suppress(OSError):  # a cache that cannot be written costs the next run another trial
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()


def _key(parts: Sequence[Path], *, model: bool = True) -> str:
    """Return a digest of the headers and sizes of the files, and of the build of llama.cpp."""
    digest = hashlib.sha256(build_record().encode())
    for part in parts:
        digest.update(b"%d " % part.stat().st_size)
        with part.open("rb") as file:
            digest.update(file.read(check_gguf(part, model=model).end))
    return digest.hexdigest()


def probe_images(encoder: Path, model: Path) -> None:
    """Try a vision encoder with the vocabulary of its model, as `probe` does a model; it is loaded whole, and encodes
    an image. Cached until it changes.

    Raises:
        InputError: it is damaged, ends libmtmd, or libmtmd refuses it.
        ConfigError: it could not be tried.
    """
    status = encoder.stat()
    _probe_images(encoder, (status.st_size, status.st_mtime_ns), model)


@functools.lru_cache(maxsize=16)
def _probe_images(encoder: Path, state: tuple[int, int], model: Path) -> None:
    note = cache_folder() / "tried" / f"images-{_key([encoder], model=False)}"
    if note.exists():
        return
    if (refusal := _child(encoder, model, "images", str(encoder))) is not None:
        raise InputError(f"{encoder} could not be loaded: {refusal}")
    _write_note(note)


def _with_stand_in(parts: Sequence[Path]) -> str | None:
    """Try a stand-in of a large model. Where there is none, or it does not pass, the model itself tells."""
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="stand-in-") as folder:
            path = Path(folder) / "model.gguf"
            if write_stand_in(parts, path) and _tried(parts[0], path) is None:
                return None
    except InputError:
        pass
    except OSError as error:  # no room, no permission
        log.warning("no stand-in of %s could be written (%s); the whole file is tried", parts[0], error)
    return _tried(parts[0], parts[0])


def _tried(model: Path, path: Path) -> str | None:
    """Have a child load `path`, which is `model` or stands for it; return as `probe`. Raises as `_child` does."""
    architecture = check_gguf(model).values.get(ARCHITECTURE)
    is_refused = architecture is not None and architecture.scalar in {name.encode() for name in REFUSED}
    has_head = any(HEAD_TENSORS & check_gguf(part).tensors.keys() for part in parts_of(model))
    return _child(model, path, "vocabulary" if is_refused else "head" if has_head else "model")


def _child(model: Path, path: Path, what: str, *more: str) -> str | None:
    """Have a child do with `path` `what` probe_child.py says, to try `model`; return as `probe`.

    Raises:
        InputError: the child has died.
        ConfigError: it has ended otherwise.
    """
    command = [
        sys.executable,
        str(_CHILD),
        str(Path(llama_cpp.__file__).parent),
        str(path),
        what,
        str(free_memory()),
        *more,
    ]
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    try:
        child = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise _ends(model, f"it was not done after {TIMEOUT_S} s") from None
    lines = [line.strip() for line in child.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    telling = [line for line in lines if any(word in line for word in _TELLING)] or ["it gave no reason"]
    if child.returncode < 0:
        raise _ends(model, f"{signal.Signals(-child.returncode).name}: {telling[-1]}")
    if child.returncode == IS_REFUSED:
        return "; ".join(telling[-3:])
    if child.returncode:
        said = lines[-1] if lines else "it gave no reason"
        raise ConfigError(f"{model} could not be tried: {said}; model.probe=false loads it without this trial")
    return None


def _ends(model: Path, how: str) -> InputError:
    return InputError(
        f"{model} ends llama.cpp ({how}): it is damaged, made for another version, or too large for the free memory;"
        " fetch or convert it again (model.probe=false loads it without this trial)"
    )


def write_stand_in(parts: Sequence[Path], target: Path) -> bool:
    """Write a stand-in of the model in `parts`: its keys, and the tensors of its first layers, as many as have one of
    each kind. The weights are a hole in the file, which reads as zeros and takes no room.

    Returns: whether that makes the model smaller; if not, nothing is written.
    """
    contents = [check_gguf(part) for part in parts]
    with parts[0].open("rb") as file:
        head = file.read(contents[0].end)
    values = contents[0].values
    architecture = values[ARCHITECTURE].scalar if ARCHITECTURE in values else None
    name = (architecture if isinstance(architecture, bytes) else b"") + b".block_count"
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
            layer = _LAYER.fullmatch(tensor_name)
            if layer is None or int(layer[2]) < kept:
                infos.append(_info(tensor_name, tensor, at))
                at += -(-sizes[tensor_name] // _ALIGNMENT) * _ALIGNMENT
    counts = struct.pack("<4sIQQ", b"GGUF", 3, len(infos), len(keys))
    header = counts + b"".join([*keys, *infos])
    with target.open("wb") as file:
        file.write(header)
        file.truncate(-(-len(header) // _ALIGNMENT) * _ALIGNMENT + at)
    return True


def _kept_layers(contents: Sequence[Contents], layers: int, head: bytes) -> int:
    """Count the layers up to the first of the last kind: layers are of a kind that have the same tensors and values."""
    kinds: list[set[object]] = [set() for _ in range(layers)]
    for each in contents:
        for name, tensor in each.tensors.items():
            name_parts = _LAYER.fullmatch(name)
            if name_parts is not None and int(name_parts[2]) < layers:
                kinds[int(name_parts[2])].add((name_parts[1], name_parts[3], tensor.lengths, tensor.kind))
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
