"""No optimisation of the scheduler changes a bit of a row's logits, on real llama.cpp."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from operators.engine.sampling.params import SamplingParams
from operators.llama.model import LlamaModel
from operators.settings.runtime import OptimiseSettings
from tests.operators.engine.fixtures import only
from tests.operators.llama.test_decoding import COUNTS, complete, model, model_file
from tests.sets import often

pytestmark = pytest.mark.slow("decodes each row alone and in company")

__all__ = ["model", "model_file"]

WARM = SamplingParams(temperature=1.0, top_k=40)


def texts() -> list[np.ndarray]:
    """Prompts of 5 to 700 tokens: strangers, a family with 40 tokens in common, one with 300, and twins."""
    random = np.random.default_rng(0)

    def draw(count: int) -> np.ndarray:
        return random.integers(0, 300, count).astype(np.int32)

    short, long = draw(40), draw(300)
    rows = [draw(n) for n in (5, 62, 63, 64, 65, 66, 127, 129, 511, 513, 700)]
    rows += [np.concatenate([short, draw(n)]) for n in (2, 9, 15, 20, 23, 24, 60)]
    rows += [np.concatenate([long, draw(n)]) for n in (3, 60, 64, 65, 66, 150, 400)]
    rows += [rows[7], rows[7], rows[1], rows[-1]]
    return [rows[i] for i in random.permutation(len(rows))]


@pytest.fixture(scope="module")
def expected(model: LlamaModel):
    """Without anything shared, moved, grouped or sorted."""
    rows = texts()
    return complete(model, rows, range(len(rows)), WARM, slots=3, optimise=only(compaction=True))


WAYS: dict[str, dict[str, Any]] = {
    **{f"{slots} slots": {"slots": slots} for slots in (1, 2, 7, 16)},
    **{
        f"{name} alone": {"slots": 7, "optimise": only(**{"compaction": True, name: True})}
        for name in ("prefix_sharing", "sample_sharing", "grouped_prefill")
    },
    "holes between the slots": {"slots": 7, "optimise": OptimiseSettings(compaction=False)},
    "short calls": {"slots": 5, "n_ubatch": 128},
    "long calls": {"slots": 5, "n_ubatch": 1024},
}


@pytest.mark.parametrize(
    "name", often(WAYS, "7 slots", "grouped_prefill alone", "holes between the slots", "short calls")
)
def test_no_setting_changes_a_bit(model, expected, name):
    rows, how = texts(), WAYS[name]
    assert complete(model, rows, range(len(rows)), WARM, **how) == expected
    assert "optimise" in how or COUNTS["shared_tokens"] > 1000


@pytest.mark.parametrize("model_file", often(["f32", "q8_0", "q4_k_m"], "q8_0"), indirect=True)
@pytest.mark.parametrize("threads", often([1, 2, 3, 4, 8], 1, 2))
@pytest.mark.parametrize("slots", often([1, 5], 1))
def test_no_number_of_threads_changes_a_bit(model, expected, threads, slots, monkeypatch):
    """Of rows in company, and of lone ones up to 700 tokens: so neither keys nor fingerprints have threads."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    rows = texts()
    assert complete(model, rows, range(len(rows)), WARM, slots=slots, threads=threads) == expected


@pytest.mark.parametrize(
    "model_file", often(["f32", "q8_0", "q4_k_m"], "q8_0"), indirect=True
)  # one of each kind of kernel
def test_without_flash_attention_it_holds_too(model):
    rows = texts()
    how: dict[str, Any] = {"flash_attention": False}
    plain = complete(model, rows, range(len(rows)), WARM, slots=3, optimise=only(compaction=True), **how)
    for slots in (1, 7, 16):
        assert complete(model, rows, range(len(rows)), WARM, slots=slots, **how) == plain
