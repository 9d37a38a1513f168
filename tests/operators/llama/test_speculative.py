"""Speculative decoding on real llama.cpp: ids and bits of decode=autoregressive, whatever is drafted."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from operators.engine.sampling.params import SamplingParams
from operators.llama.model import LlamaModel
from tests.operators.engine.speculative.drafters import Oracle, speculative
from tests.operators.llama.test_decoding import COUNTS, RARER, USUAL, WARM, complete, model, model_file, texts
from tests.operators.llama.test_structured import constrained
from tests.sets import often

pytestmark = pytest.mark.slow("decodes with drafts and without")

__all__ = ["model", "model_file"]

KINDS = often((*USUAL, *RARER), "q8_0")
SHUFFLED = np.random.default_rng(1).permutation(19).tolist()


@pytest.mark.parametrize("model_file", KINDS, indirect=True)
def test_ids_and_bits_are_those_of_autoregressive(model: LlamaModel):
    prompts = texts(19)
    for params in (WARM, SamplingParams()):
        expected = complete(model, prompts, range(19), params, slots=16, threads=1)
        make = partial(speculative, Oracle(expected[0], 0.8))
        for slots, most, order in [(1, 7, range(19)), (4, 3, SHUFFLED), (16, 2, SHUFFLED)]:
            always = partial(make, adaptive=False, draft_tokens=most)
            found = complete(model, prompts, order, params, slots=slots, threads=1, make=always)
            assert found == expected, f"{slots} slots"
            assert COUNTS["drafted_tokens"] > COUNTS["accepted_tokens"] > 20
        found = complete(model, prompts, range(19), params, slots=5, threads=1, make=make)
        assert found == expected


@pytest.mark.parametrize("model_file", ["q8_0"], indirect=True)
def test_constrained_rows_are_the_same(model: LlamaModel):
    prompts, params = texts(8), constrained(model, temperature=1.0)
    expected = complete(model, prompts, range(8), params, max_tokens=90, slots=4, threads=1)
    make_for = partial(speculative, Oracle(expected[0], 0.8), adaptive=False, draft_tokens=5)
    found = complete(model, prompts, range(8), params, max_tokens=90, slots=3, threads=1, make=make_for)
    assert found == expected


@pytest.mark.parametrize("model_file", ["f32"], indirect=True)
def test_without_flash_attention_bits_would_differ(model: LlamaModel):
    """If this fails llama.cpp has changed for the better, and decode=speculative need not refuse it."""
    prompts = texts(19)
    how: dict[str, Any] = {"slots": 4, "threads": 1, "flash_attention": False}
    expected = complete(model, prompts, range(19), WARM, **how)
    make = partial(speculative, Oracle(expected[0], 1.0), adaptive=False, draft_tokens=5)
    bits = complete(model, prompts, range(19), WARM, make=make, **how)[1]
    assert any(bits[key] != expected[1][key] for key in expected[1] if key in bits)
