"""The products of our matrix kernels: right, and the same bits in any company and by any instructions."""

from __future__ import annotations

import ctypes
import hashlib

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from tests.operators.llama.kernels.library import (
    KERNELS,
    KINDS,
    activations,
    number,
    opened,
    packed,
    products,
    runnable,
    sizes,
    truth,
    weights,
)
from tests.sets import often

SCALES = {"zero": 0, "least": 1, "denormal": 0x83FF, "one": 0x3C00, "largest": 0x7BFF, "negative": 0xFBFF}
"""Bits of F16 scales; of MXFP4 the exponent has the place of both (`exponent`)."""
OTHERS = ("F32", "F16", "BF16", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "IQ4_XS", "I32")
GOLDEN: dict[int, dict[str, str]] = {
    2: {
        "Q8_0": "99e479e305da3816",
        "Q4_0": "23f5560cc5c6ec6b",
        "IQ4_NL": "7f2e091d00b8b2c8",
        "MXFP4": "4ad0a353f5c20cbb",
        "Q4_K": "f9eda7a27a93fbed",
        "Q5_K": "acdde4ed72eb9be5",
        "Q6_K": "cb23f1522afc7c37",
    }
}
"""By kernels_version: what the kernels compute."""


def exponent(scale: int) -> int:
    return {0: 0, 1: 1, 0x7BFF: 235}.get(scale, 127)


def check(kind: str, file: np.ndarray, inputs: np.ndarray, names: list[str]) -> None:
    """The products are the exact ones, and the same by all `names`."""
    exact, miss = truth(kind, file, inputs)
    matrix = packed(kind, file)
    first = products(names[0], kind, matrix, inputs)
    assert (np.abs(first - exact) <= miss).all()
    for name in names[1:]:
        assert products(name, kind, matrix, inputs).tobytes() == first.tobytes(), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "blocks", "columns"), [(16, 1, 1), (48, 3, 19), (80, 7, 33)])
def test_products_are_the_exact_ones_to_a_rounding_a_unit(kind, rows, blocks, columns):
    values = max(64, sizes(kind)[0]) * blocks
    check(kind, weights(kind, rows, values, "some"), activations(columns, values, "some"), runnable())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", SCALES)
def test_products_of_extreme_scales_are_the_exact_ones(kind, scale):
    bits = exponent(SCALES[scale]) if kind == "MXFP4" else SCALES[scale]
    inputs = activations(9, 512, "extreme")
    inputs[1] = 0
    inputs[2] = 1e-31  # less than a block can say
    inputs[3] = 1e-29
    inputs[4] = np.where(np.arange(512) % 2, -1, 1)  # all at the ends of the steps
    inputs[5] = 1
    inputs[6] = -1
    inputs[7] = np.arange(512) % 255 - 127  # ties
    inputs[8] = (np.arange(512) % 255 - 127) / 2
    file = weights(kind, 64, 512, "extreme", bits)
    rest = slice(208) if kind == "Q6_K" else slice(4 if kind in ("Q4_K", "Q5_K") else 2, None)  # but those scales
    file[16:32, :, rest] = 0
    file[32:48, :, rest] = 255
    if kind == "Q8_0":
        file[48:64, :, rest] = 128  # -128, which no quantiser writes
    check(kind, file, inputs, runnable())


@pytest.mark.parametrize("kind", KINDS)
def test_no_number_of_columns_changes_a_bit(kind):
    values = 2 * sizes(kind)[0]
    matrix, inputs = packed(kind, weights(kind, 32, values, "company")), activations(35, values, "company")
    alone = [products("plain C++", kind, matrix, inputs[i : i + 1]).tobytes() for i in range(len(inputs))]
    for name in runnable():
        for columns in (*range(1, 18), 31, 32, 35):
            first = len(inputs) - columns
            together = products(name, kind, matrix, inputs[first:])
            assert [row.tobytes() for row in together] == alone[first:], (name, columns)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
def test_what_is_no_number_stays_in_its_row_and_its_column_and_is_not_lost(kind, bad):
    file, inputs = weights(kind, 48, 512, "bad"), activations(20, 512, "bad")
    bad_inputs, bad_file = inputs.copy(), file.copy()
    bad_inputs[3, 70], bad_inputs[17, 511] = bad, bad
    bad_rows = []
    for row, at in zip((5, 40), (KINDS[kind].scale, KINDS[kind].minimum), strict=True):
        if kind != "MXFP4" and at is not None:  # whose scales are all numbers
            bad_file[row, 1, at : at + 2] = np.array([bad], np.float16).view(np.uint8)
            bad_rows.append(row)
    is_bad = np.zeros((20, 48), bool)
    is_bad[[3, 17]], is_bad[:, bad_rows] = True, True
    for name in runnable():
        good = products(name, kind, packed(kind, file), inputs)
        spoilt = products(name, kind, packed(kind, bad_file), bad_inputs)
        assert (np.isfinite(spoilt) == ~is_bad).all(), name
        assert np.isnan(spoilt[[3, 17]]).all(), name
        assert spoilt[~is_bad].tobytes() == good[~is_bad].tobytes(), name


@pytest.mark.parametrize("kind", often(KINDS, "Q8_0", "Q6_K"))
@pytest.mark.parametrize("threads", often(range(2, 9), 3, 8))
def test_no_number_of_threads_that_pack_changes_a_byte(kind, threads):
    """A thread takes a MiB at least."""
    file = weights(kind, 16 * 129, 256, "threads").repeat(20 if kind in ("Q8_0", "Q6_K") else 40, axis=1)
    assert packed(kind, file, threads).tobytes() == packed(kind, file).tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_packing_changes_the_order_alone(kind):
    """Nothing is widened, nothing is lost: two matrices with unlike bytes are packed to unlike ones."""
    file = weights(kind, 16, sizes(kind)[0], "order")
    usual = packed(kind, file)
    bit = 0
    for at in range(file.shape[-1]):
        other = file.copy()
        other[at % 16, 0, at] ^= 1 << at % 8
        changed = np.unpackbits(packed(kind, other) ^ usual).sum()
        bit += changed == 1
    assert bit == file.shape[-1]


@pytest.mark.parametrize(
    "kind", [*KINDS, "F32", "F16", "BF16", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "IQ4_XS", "I32"]
)
def test_sizes_that_cannot_be_packed_are_refused_and_nothing_is_written(kind):
    library, block = opened(), GGMLQuantizationType[kind] in map(number, KINDS) and sizes(kind)[0]
    taken, out, zeros = block or 256, np.full(1 << 16, 0xA5, np.uint8), np.zeros(1 << 16, np.uint8)
    wrong = [(taken, rows) for rows in (0, 1, 15, 17, 24, -16)]
    wrong += [(values, 16) for values in (0, 1, taken - 1, taken + taken // 2, -taken)]
    for values, rows in wrong if block else [*wrong, (256, 16)]:
        sized = ctypes.c_int64(values), ctypes.c_int64(rows)
        at, to = ctypes.c_void_p(zeros.ctypes.data), ctypes.c_void_p(out.ctypes.data)
        assert not library.kernels_pack(number(kind), at, to, *sized, 1), (values, rows)
        assert not library.kernels_multiply(b"plain C++", number(kind), at, *sized, at, 1, to), (values, rows)
    assert (out == 0xA5).all()


def test_kernels_that_this_cpu_lacks_are_refused_and_plain_ones_are_never_chosen():
    library, out = opened(), np.zeros(16, np.float32)
    at = ctypes.c_void_p(out.ctypes.data)
    for name in ["AVX-1024", *(set(KERNELS) - set(runnable()))]:
        assert not library.kernels_multiply(name.encode(), 8, at, ctypes.c_int64(32), ctypes.c_int64(16), at, 1, at)
    assert library.kernels_runs(b"plain C++")
    assert library.kernels_runs(b"") is (len(runnable()) > 1)


@pytest.mark.parametrize("kind", KINDS)
def test_no_bit_changes_without_a_new_version(kind):
    """The version is part of what identifies a run. Who changes the chain of operations raises VERSION in plugin.cpp,
    and writes the new digests here."""
    check_golden(kind)


def check_golden(kind: str) -> None:
    values = 2 * max(256, sizes(kind)[0])
    matrix = packed(kind, weights(kind, 48, values, "golden"))
    version = opened().kernels_version()
    assert version in GOLDEN, "a new version needs its digests"
    for name in runnable():
        made = products(name, kind, matrix, activations(5, values, "golden"))
        digest = hashlib.sha256(made.tobytes()).hexdigest()[:16]
        assert digest == GOLDEN[version].get(kind), f"bits of {kind} have changed: raise VERSION in plugin.cpp"


@pytest.mark.laws
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_products_of_any_size_are_the_exact_ones(kind, seed):
    random = np.random.default_rng([seed, number(kind)])
    block = sizes(kind)[0]
    values = block * int(random.integers(1, 1 + (512 if seed == 0 else 8192 if seed < 3 else 3000) // block))
    rows = 16 * int(random.integers(1, 39))
    columns = [1, 2, 600, 17, 64, int(random.integers(1, 600))][seed]
    inputs = activations(columns, values, f"sweep {seed}")
    file = weights(kind, rows, values, f"sweep {seed}")
    check(kind, file, inputs, [name for name in runnable() if rows * values * columns < 1e8 or name != "plain C++"])
