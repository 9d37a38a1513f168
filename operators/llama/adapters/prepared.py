"""The adapters of a job as files that llama.cpp loads, made once, in the cache of converted weights.

A run sets either the bank, with all adapters side by side, of which kernels of our own compute those of each row; or
one of the singles. In both the values are F32, the scale is in B, and alpha is 0, so that llama.cpp multiplies with 1.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from operators.llama.adapters.adapter_file import SUFFIXES, read_adapter_file
from operators.llama.adapters.peft import WEIGHTS, read_peft
from operators.llama.adapters.peft_config import CONFIG
from operators.llama.adapters.targets import read_base, shape_of
from operators.llama.adapters.tensors import (
    EMBEDDINGS,
    Adapter,
    AdapterSource,
    Floats,
    checked_adapter,
    padded_shapes,
    state_of,
)
from operators.llama.gguf_check import check_gguf
from pipeline.api.errors import InputError
from pipeline.system.file_cache import weights_cache
from pipeline.system.terminal import complain

_LAYOUT = 1
"""Of the files; another one for other bytes of the same values."""
_HEADER_BYTES = 1 << 20
"""Bytes that a header takes at most, about."""
_MAGIC = b"GGUF"
ALIGNMENT = gguf.GGUF_DEFAULT_ALIGNMENT
logging.getLogger("gguf.gguf_writer").setLevel(logging.WARNING)  # it tells every file that it writes
Shape = tuple[int, ...]
TargetShapes = tuple[str, tuple[Shape, Shape]]
"""A tensor of the base, and the shapes of A and B for it."""


@dataclass(frozen=True)
class PreparedAdapters:
    """The adapters of a job, checked; their files are made when they are asked for."""

    architecture: str
    adapters: tuple[Adapter, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(adapter.name for adapter in self.adapters)

    @property
    def contents(self) -> tuple[str, ...]:
        """A digest of each adapter's values, see Adapter."""
        return tuple(adapter.content for adapter in self.adapters)

    @property
    def begins(self) -> NDArray[np.int32]:
        """int32[adapters + 1]: where the ranks of each begin in every tensor of the bank, and how many there are."""
        return np.cumsum([0, *(adapter.rank for adapter in self.adapters)], dtype=np.int32)

    @property
    def targets(self) -> tuple[str, ...]:
        """The tensors of the base that an adapter adds to."""
        return tuple(sorted({target for adapter in self.adapters for target in adapter.tensors}))

    @property
    def bank_bytes(self) -> int:
        """Bytes of the bank's tensors."""
        return 4 * sum(int(np.prod(shape)) for target in self.targets for shape in self._bank_shapes(target))

    def bank(self) -> Path:
        """Return the file of all adapters side by side: A = [A1; A2; ...] and B = [B1, B2, ...] under the usual names,
        with zeros where an adapter lacks a tensor.

        Each `.lora_b` lies transposed, of each expert, behind the shape that it has elsewhere: the values of all
        outputs for each rank. Only kernels of our own can read it.
        """

        return self._all_in_one("bank", transposed=True)

    def joined(self, mask: int) -> Path:
        """Return the file of those adapters whose bits are set in `mask`, as llama.cpp reads it; bit i is the i-th."""
        chosen = tuple(adapter for i, adapter in enumerate(self.adapters) if mask >> i & 1)
        if len(chosen) == 1:
            return self._single(*chosen)
        return PreparedAdapters(self.architecture, chosen)._all_in_one("joined", transposed=False)

    def _all_in_one(self, what: str, *, transposed: bool) -> Path:
        def values() -> Iterator[Floats]:
            for target in self.targets:
                a, b = self._side_by_side(target)
                yield a
                yield b.swapaxes(-1, -2) if transposed else b

        shapes = [(target, self._bank_shapes(target)) for target in self.targets]
        return self._made(what, self.adapters, self.bank_bytes, shapes, values)

    def _single(self, adapter: Adapter) -> Path:
        def values() -> Iterator[Floats]:
            for pair in adapter.tensors.values():
                yield from pair.padded(adapter.rank)

        shapes = [(target, padded_shapes(pair, adapter.rank)) for target, pair in adapter.tensors.items()]
        return self._made("adapter", (adapter,), adapter.size_bytes, shapes, values)

    def _bank_shapes(self, target: str) -> tuple[Shape, Shape]:
        pair = next(adapter.tensors[target] for adapter in self.adapters if target in adapter.tensors)
        return padded_shapes(pair, int(self.begins[-1]))

    def _side_by_side(self, target: str) -> tuple[Floats, Floats]:
        shape_a, shape_b = self._bank_shapes(target)
        a, b = np.zeros(shape_a, np.float32), np.zeros(shape_b, np.float32)
        ranks_of_a = a.swapaxes(-1, -2) if target != EMBEDDINGS else a
        for adapter, begin in zip(self.adapters, self.begins.tolist(), strict=False):
            if (pair := adapter.tensors.get(target)) is not None:
                ranks = slice(begin, begin + pair.rank)
                own_a = pair.a
                ranks_of_a[..., ranks] = own_a.swapaxes(-1, -2) if target != EMBEDDINGS else own_a
                b[..., ranks] = pair.b
        return a, b

    def _made(
        self,
        what: str,
        adapters: Sequence[Adapter],
        size: int,
        shapes: Sequence[TargetShapes],
        values: Callable[[], Iterator[Floats]],
    ) -> Path:
        """Return the file in the cache, which is made if it is not there, or is not as it was written."""
        key = (_LAYOUT, self.architecture, [adapter.content for adapter in adapters])
        name = f"{what}-{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.gguf"

        def check() -> None:
            for adapter in adapters:
                adapter.check_unchanged()

        def write(path: Path) -> None:
            check()
            _write(path, self.architecture, shapes, values())
            check()

        def waits() -> None:
            complain("model.adapters: another process writes to the cache of weights; waiting for it")

        for adapter in adapters:
            adapter.check_unchanged()
        cache = weights_cache()
        kept = cache.find(name)
        if kept is not None and not _is_whole(kept, shapes, values()):
            complain(f"model.adapters: {kept} is damaged; it is made anew")
            kept.unlink(missing_ok=True)
            kept = None
        return cache.make(name, size + _HEADER_BYTES, write, waits) if kept is None else kept


def _is_whole(path: Path, shapes: Sequence[TargetShapes], values: Iterator[Floats]) -> bool:
    """Return whether a file of the cache has these values, to the bit: whatever it has would be in every text."""
    try:
        contents = check_gguf(path, model=False)
        start = -(-contents.end // ALIGNMENT) * ALIGNMENT
        for target, pair in shapes:
            for suffix, shape in zip(SUFFIXES, pair, strict=True):
                tensor = contents.tensors[(target + suffix).encode()]
                stored = np.memmap(path, np.uint32, "r", start + tensor.offset, int(np.prod(shape)))
                given = np.ascontiguousarray(next(values)).view(np.uint32)
                if shape_of(tensor.lengths) != shape or not np.array_equal(stored, given.ravel()):
                    return False
    except (InputError, KeyError, ValueError):
        return False
    return len(contents.tensors) == 2 * len(shapes)


def read_adapter(source: AdapterSource, base: Path) -> Adapter:
    """Read and check an adapter, all its values included, without keeping them. Cached until a file changes.

    Args:
        base: the model that it is for, or the first of its parts.

    Raises:
        InputError: the file is missing, damaged, of a kind that is not supported, or for another base; or a part of it
            would have no effect.
    """
    path = source.path
    if not path.exists():
        raise source.error("does not exist; give a GGUF file, or a folder of PEFT")
    files = [file for name in (CONFIG, WEIGHTS) if (file := path / name).is_file()] if path.is_dir() else [path]
    base_state = state_of(base)
    try:
        return _read(source, base, base_state, tuple((file, state_of(file)) for file in files))
    except OSError as error:
        raise source.error(f"cannot be read: {error.strerror}") from error


@functools.lru_cache(maxsize=128)
def _read(
    source: AdapterSource,
    base: Path,
    base_state: tuple[int, int],
    states: tuple[tuple[Path, tuple[int, int]], ...],
) -> Adapter:
    if not np.isfinite(source.scale):
        raise source.error(f"cannot be added {source.scale} times; give a number as its scale")
    model, path = read_base(base), source.path
    if path.is_dir():
        pairs = read_peft(source, model)
    else:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
        if head != _MAGIC:
            what = f"a file that begins with {head!r}" if head else "an empty file"
            raise source.error(f"is {what}, no GGUF; give a GGUF file, or the folder that PEFT wrote")
        pairs = read_adapter_file(source, model)
    return checked_adapter(source, dict(sorted(pairs.items())), dict(states))


def prepared(base: Path, sources: Sequence[AdapterSource]) -> PreparedAdapters:
    """Read and check the adapters of a job for the model `base`, in this order. Raises InputError: see
    `read_adapter`."""
    adapters = tuple(read_adapter(source, base) for source in sources)
    return PreparedAdapters(read_base(base).architecture, adapters)


def _write(path: Path, architecture: str, shapes: Sequence[TargetShapes], values: Iterator[Floats]) -> None:
    """Write a file of an adapter, one tensor at a time.

    Args:
        shapes: of A and B of each target.
        values: of each A and B, in this order.
    """
    writer = gguf.GGUFWriter(path, architecture)
    try:
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 0.0)
        for target, pair in shapes:
            for suffix, shape in zip(SUFFIXES, pair, strict=True):
                writer.add_tensor_info(target + suffix, shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in values:
            writer.write_tensor_data(np.ascontiguousarray(tensor))
    finally:
        writer.close()
