"""Routers of experts, F32 matrices that are ours where attention is: right, and the same bits in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.operators.llama.kernels.library import runnable
from tests.operators.llama.kernels.test_attention import Ours
from tools.bench.kernels import Bench

ROUTER = b"blk.7.ffn_gate_inp.weight"


@pytest.fixture(scope="module")
def ours() -> Ours:
    return Ours()


def routed(
    ours: Ours, weights: NDArray[Any], tokens: NDArray[Any], kernels: str = "", threads: int = 1, name: bytes = ROUTER
) -> tuple[NDArray[np.float32], int]:
    """The products (tokens, rows), and how many operations were not ours."""
    assert ours.library.kernels_use(kernels.encode())
    ours.library.kernels_others()
    ours.library.kernels_attend(True)
    try:
        return Bench(threads).multiply(weights, tokens, name), ours.library.kernels_others()
    finally:
        ours.library.kernels_attend(False)
        ours.library.kernels_use(b"")


@pytest.mark.parametrize(("rows", "size", "tokens"), [(8, 64, 1), (3, 8, 5), (130, 256, 33), (32, 1024, 16)])
def test_a_router_is_exact_to_some_roundings_and_has_its_bits_in_any_company(ours, rows, size, tokens):
    random = np.random.default_rng(rows)
    weights = random.standard_normal((rows, size), np.float32)
    inputs = random.standard_normal((tokens, size), np.float32)
    made, not_ours = routed(ours, weights, inputs)
    assert not_ours == 0
    exact = inputs.astype(np.float64) @ weights.T.astype(np.float64)
    assert np.abs(made - exact).max() < 2e-7 * size**0.5 * np.abs(exact).max()
    for kernels in runnable():
        for threads in (1, 3, 8):
            assert routed(ours, weights, inputs, kernels, threads)[0].tobytes() == made.tobytes(), (kernels, threads)
    for token in {0, tokens // 2, tokens - 1}:
        alone, _ = routed(ours, weights, inputs[token : token + 1], threads=2)
        assert alone.tobytes() == made[token : token + 1].tobytes(), token


@pytest.mark.parametrize(("name", "size"), [(b"blk.7.ssm_x.weight", 64), (ROUTER, 60)], ids=["name", "size"])
def test_other_products_in_f32_stay_llama_cpps_and_are_counted(ours, name, size):
    random = np.random.default_rng(1)
    weights, inputs = random.standard_normal((20, size), np.float32), random.standard_normal((4, size), np.float32)
    made, not_ours = routed(ours, weights, inputs, name=name)
    assert not_ours == 1
    assert np.allclose(made, inputs @ weights.T, atol=1e-4)
