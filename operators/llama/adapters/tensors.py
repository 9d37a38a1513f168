"""Adapters as values: where their matrices lie in files, read one at a time, so that no adapter is in memory whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray

from pipeline.api.errors import InputError

Floats = NDArray[np.float32]
EMBEDDINGS, HEAD = "token_embd.weight", "output.weight"
TYPES = {int(GGMLQuantizationType[name]): name for name in ("F32", "F16", "BF16", "Q8_0")}
"""Types of tensors that are read, by their number in a GGUF file."""
RANK_STEP = 16
"""Ranks are padded with zeros to a multiple of it: below, llama.cpp takes slower kernels."""


@dataclass(frozen=True)
class AdapterSource:
    """An adapter as a job declares it: a GGUF file or a folder of PEFT, and the factor of what it adds."""

    name: str
    path: Path
    scale: float = 1.0

    def error(self, what: str, path: Path | None = None) -> InputError:
        """Return the error that says `what` of the adapter, or of one of its files."""
        return InputError(f"model.adapters.{self.name}: {path or self.path} {what}")


@dataclass(frozen=True)
class AdapterMatrix:
    """A matrix of an adapter in a file.

    Args:
        label: its name there.
        kind: its type, of TYPES.
        offset: its first byte in the file.
        stored: its shape there, the length of a row last.
        transposed: what is stored is the transpose.
        heads: rows of as many heads are put in llama.cpp's order, see `interleaved`; 0: they have it.
    """

    label: str
    path: Path
    kind: int
    offset: int
    stored: tuple[int, ...]
    transposed: bool = False
    heads: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored[::-1] if self.transposed else self.stored

    def read(self) -> Floats:
        """Return its values; those in F32 are a view of the file."""
        values, size = GGML_QUANT_SIZES[GGMLQuantizationType(self.kind)]
        shape = (*self.stored[:-1], self.stored[-1] // values * size)
        data = np.memmap(self.path, np.uint8, "r", self.offset, shape)
        read: Floats = quants.dequantize(np.asarray(data), GGMLQuantizationType(self.kind))
        read = interleaved(read, self.heads) if self.heads else read
        return read.T if self.transposed else read


def interleaved(rows: Floats, heads: int) -> Floats:
    """Return the rows of each head in the order of llama.cpp, whose rotary embeddings turn neighbours (2i, 2i + 1);
    those of transformers turn i and i + half of the head."""
    halves = rows.reshape(heads, 2, -1, rows.shape[-1])
    return halves.swapaxes(1, 2).reshape(rows.shape)


@dataclass(frozen=True)
class LoraPair:
    """What an adapter adds to one tensor of the base: the product of `b` and `a`, `scale` times.

    For the table of tokens both are the other way around (of llama.cpp): `a` has a row for each token.
    """

    target: str
    stored_a: AdapterMatrix
    stored_b: AdapterMatrix
    scale: float

    @property
    def rank(self) -> int:
        return self.stored_b.shape[-1]

    @property
    def a(self) -> Floats:
        """[..., rank, n_in], or [n_tokens, rank] of the table of tokens."""
        return self.stored_a.read()

    @property
    def b(self) -> Floats:
        """[..., n_out, rank], with the scale in it."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.multiply(self.stored_b.read(), self.scale, dtype=np.float64).astype(np.float32)

    def padded(self, rank: int) -> tuple[Floats, Floats]:
        """Return `a` and `b` with zeros up to `rank`."""
        more = (0, rank - self.rank)
        axis_a = -1 if self.target == EMBEDDINGS else -2
        a, b = self.a, self.b
        pads_a = [more if i == a.ndim + axis_a else (0, 0) for i in range(a.ndim)]
        return np.pad(a, pads_a), np.pad(b, [(0, 0)] * (b.ndim - 1) + [more])


@dataclass(frozen=True)
class Adapter:
    """An adapter that was checked against its base.

    Args:
        content: a digest of all that it adds to each tensor: equal in every type of file that has the same values.
        tensors: what it adds, by the name of the base's tensor, in the order of these.
        states: size and time of change of each file that it is read from.
    """

    name: str
    content: str
    tensors: Mapping[str, LoraPair]
    states: Mapping[Path, tuple[int, int]]

    @property
    def rank(self) -> int:
        """The largest of its tensors, padded: a multiple of RANK_STEP."""
        return -(-max(pair.rank for pair in self.tensors.values()) // RANK_STEP) * RANK_STEP

    @property
    def size_bytes(self) -> int:
        """Bytes of its tensors in F32, padded."""
        shapes = (padded_shapes(pair, self.rank) for pair in self.tensors.values())
        return 4 * sum(int(np.prod(shape)) for pair in shapes for shape in pair)

    def check_unchanged(self) -> None:
        """Raise InputError if a file is not what it was when it was checked."""
        for path, state in self.states.items():
            if not path.exists() or state != state_of(path):
                raise InputError(f"model.adapters.{self.name}: {path} was changed while it was read; start again")


def padded_shapes(pair: LoraPair, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of `pair.padded(rank)`."""
    a, b = pair.stored_a.shape, pair.stored_b.shape
    return (a[0], rank) if pair.target == EMBEDDINGS else (*a[:-2], rank, a[-1]), (*b[:-1], rank)


def state_of(path: Path) -> tuple[int, int]:
    """Return the size and time of change of a file."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def checked_adapter(
    source: AdapterSource, pairs: Mapping[str, LoraPair], states: Mapping[Path, tuple[int, int]]
) -> Adapter:
    """Return the adapter, after all its values were read once. `states`: of its files, from before they were read.
    Raises InputError if a value is NaN or infinite, or it adds nothing."""
    digest, adds = hashlib.sha256(), source.scale == 0
    for target, pair in pairs.items():
        a, b = pair.a, pair.b
        adds = adds or bool(b.any())
        for stored, values in ((pair.stored_a, a), (pair.stored_b, b)):
            if not np.isfinite(values).all():
                scaled = f", {pair.scale:g} times," if stored is pair.stored_b else ""
                raise source.error(
                    f"has values{scaled} that are NaN or infinite in {stored.label}: its training diverged or the file"
                    " is damaged; take an earlier checkpoint, or copy it again"
                )
            digest.update(repr((target, values.shape)).encode())
            digest.update(np.ascontiguousarray(values).data)
    if not adds:
        raise source.error("was not trained: all its B are zeros, so it would have no effect; take a later checkpoint")
    adapter = Adapter(source.name, digest.hexdigest(), pairs, states)
    adapter.check_unchanged()
    return adapter
