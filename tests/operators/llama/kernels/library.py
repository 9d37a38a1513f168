"""Our matrix kernels through their C functions, and the same products in double precision."""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path
from typing import NamedTuple

import llama_cpp
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

PATH = Path(llama_cpp.__file__).parent / "lib/libllama-batch-kernels.so"
KERNELS = ("plain C++", "AVX2", "AVX-VNNI", "AVX-512 VNNI")
GROUP, UNIT = 16, 32
"""Rows that are packed together; activations with one scale."""


class Kind(NamedTuple):
    """A type of weights: where the scale and the minimum of a block of the file stand (both F16, but for MXFP4)."""

    scale: int
    minimum: int | None = None


KINDS = {
    "Q8_0": Kind(0),
    "Q4_0": Kind(0),
    "IQ4_NL": Kind(0),
    "MXFP4": Kind(0),
    "Q4_K": Kind(0, 2),
    "Q5_K": Kind(0, 2),
    "Q6_K": Kind(208),
}


def opened() -> ctypes.CDLL:
    """Return the library; skips the test where there is none."""
    if not PATH.exists():
        pytest.skip("this project's kernels are not compiled here (`make`; Linux on x86-64 alone has them)")
    library = ctypes.CDLL(str(PATH))
    for name in ("kernels_pack", "kernels_multiply", "kernels_runs"):
        getattr(library, name).restype = ctypes.c_bool
    for name in ("kernels_name", "kernels_sources", "kernels_plug_in"):
        getattr(library, name).restype = ctypes.c_char_p
    return library


def runnable() -> list[str]:
    """Return the names of the kernels that this CPU has."""
    library = opened()
    return [name for name in KERNELS if library.kernels_runs(name.encode())]


def number(kind: str) -> int:
    """Return ggml's number of a type."""
    return int(GGMLQuantizationType[kind])


def sizes(kind: str) -> tuple[int, int]:
    """Return the values and the bytes of a block of the file."""
    return GGML_QUANT_SIZES[GGMLQuantizationType[kind]]


def stream(seed: str, count: int) -> NDArray[np.uint8]:
    """Return bytes that are the same everywhere and for ever."""
    return np.frombuffer(hashlib.shake_256(seed.encode()).digest(count), np.uint8).copy()


def weights(kind: str, rows: int, values: int, seed: str, scale: int | None = None) -> NDArray[np.uint8]:
    """Return a matrix as it stands in a file: (rows, blocks, bytes), random bytes whose scales and minimums are finite,
    of either sign, the least ones denormal. `scale`: the bits of all of them."""
    n_values, n_bytes = sizes(kind)
    made = stream(f"{kind} {seed}", rows * values // n_values * n_bytes).reshape(rows, -1, n_bytes)
    if kind == "MXFP4":
        made[..., 0] = made[..., 0] % 40 + 100 if scale is None else scale
        return made
    for at in KINDS[kind]:
        if at is not None:
            bits = made[..., at : at + 2].copy().view(np.uint16)
            bits[...] = bits & 0xBFFF if scale is None else scale
            made[..., at : at + 2] = bits.view(np.uint8)
    return made


def activations(columns: int, values: int, seed: str) -> NDArray[np.float32]:
    """Return random numbers of all sizes: each block of 32 has its own."""
    bits = stream(f"activations {seed}", columns * values * 2).view(np.int16).astype(np.float32) / 32768
    powers = stream(f"powers {seed}", columns * values // UNIT).astype(np.int8) // 8
    return np.ldexp(bits.reshape(columns, -1, UNIT), powers.reshape(columns, -1, 1)).reshape(columns, values)


def packed(kind: str, file: NDArray[np.uint8], threads: int = 1) -> NDArray[np.uint8]:
    """Return the packed matrix, as many bytes as the file's. What stands behind it is not touched."""
    n_values, _ = sizes(kind)
    out = np.full(file.size + 64, 0xA5, np.uint8)
    rows, values = file.shape[0], file.shape[1] * n_values
    assert opened().kernels_pack(
        number(kind), _at(file), _at(out), ctypes.c_int64(values), ctypes.c_int64(rows), threads
    )
    assert (out[file.size :] == 0xA5).all()
    return out[: file.size]


def products(name: str, kind: str, matrix: NDArray[np.uint8], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return packed `matrix` times each row of `inputs`, (columns, rows), by the kernels called `name`."""
    (columns, values), (n_values, n_bytes) = inputs.shape, sizes(kind)
    rows = matrix.size // n_bytes * n_values // values
    out = np.full(columns * rows + 16, 7, np.float32)
    sized = ctypes.c_int64(values), ctypes.c_int64(rows)
    given = np.ascontiguousarray(inputs)
    assert opened().kernels_multiply(name.encode(), number(kind), _at(matrix), *sized, _at(given), columns, _at(out))
    assert (out[columns * rows :] == 7).all()
    return out[: columns * rows].reshape(columns, rows)


def truth(
    kind: str, file: NDArray[np.uint8], inputs: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the products in double precision of the file's values with activations of 127 steps, (columns, rows), and
    by how much a chain in single precision may miss them: a rounding a unit, of the sum of all sizes."""
    parts = [_values(kind, file)]
    if (minimum := KINDS[kind].minimum) is not None:  # apart: their difference may be small where both are large
        scale = KINDS[kind].scale
        parts = [_values(kind, file, without=minimum), _values(kind, file, without=scale)]
    stepped = _stepped(inputs)
    exact = sum(parts) @ stepped.T
    size = sum(np.abs(part) for part in parts) @ np.abs(stepped).T
    units = inputs.shape[1] // UNIT
    return exact.T, (2 * units + 8) * (2.0**-24 * size.T + 2.0**-126)


def _values(kind: str, file: NDArray[np.uint8], without: int | None = None) -> NDArray[np.float64]:
    made = file.copy()
    if without is not None:
        made[..., without : without + 2] = 0
    return dequantize(made.reshape(len(made), -1), GGMLQuantizationType[kind]).astype(np.float64)


def _stepped(inputs: NDArray[np.float32]) -> NDArray[np.float64]:
    """As `quantize` of tile.h: the largest of 32 is 127 steps, ties go to even, and less than 1e-30 is zero."""
    blocks = inputs.reshape(len(inputs), -1, UNIT)
    most = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps = np.where(most >= np.float32(1e-30), np.rint(blocks * (np.float32(127) / most)), np.float32(0))
    return (steps.astype(np.float64) * (most / np.float32(127))).reshape(inputs.shape)


def _at(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
