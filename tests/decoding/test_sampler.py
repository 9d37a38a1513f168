"""The sampler against a plain reference that sorts everything, and against its own distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.decoding.rng import BLOCK, Uniforms
from operators.decoding.sampler import Sampler, candidates, draw_one, top_tokens
from operators.decoding.sequence import SamplingParams, Sequence


def reference(logits: np.ndarray, params: SamplingParams) -> list[int]:
    """The ids that top_k, top_p and min_p leave, by a full sort in float64."""
    order = np.lexsort((np.arange(len(logits)), -logits))
    order = order[logits[order] > -np.inf]
    if params.top_k:
        order = order[: params.top_k]
    values = logits[order].astype(np.float64)
    p = np.exp(values - values[0])
    p /= p.sum()
    keep = len(order)
    if params.top_p < 1:
        reached = np.flatnonzero(p.cumsum() >= params.top_p)
        keep = int(reached[0]) + 1 if len(reached) else keep
    if params.min_p > 0:
        keep = min(keep, int((values >= values[0] + np.log(params.min_p)).sum()))
    return order[:keep].tolist()


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_vocab=st.integers(1, 9000),
    top_k=st.sampled_from([0, 1, 2, 40, 100, 10_000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    ties=st.booleans(),
)
def test_candidates_are_those_of_a_full_sort(seed, n_vocab, top_k, top_p, min_p, ties):
    random = np.random.default_rng(seed)
    logits = (random.normal(0, 3, n_vocab)).astype(np.float32)
    if ties:
        logits = np.round(logits)
        logits[random.random(n_vocab) < 0.3] = -np.inf
        logits[random.integers(n_vocab)] = 1
    params = SamplingParams(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)
    ids, values = candidates(logits, params)
    assert ids.tolist() == reference(logits, params)
    np.testing.assert_array_equal(values, logits[ids])


@pytest.mark.parametrize("k", [1, 40, 200])
def test_top_tokens_at_the_size_of_a_real_vocabulary(k):
    logits = np.random.default_rng(0).normal(0, 2, 151_936).astype(np.float32)
    assert top_tokens(logits, k).tolist() == np.lexsort((np.arange(151_936), -logits))[:k].tolist()


def test_drawn_frequencies_follow_the_distribution():
    logits = np.array([2.0, 1.0, 0.0, -1.0, -9.0], np.float32)
    params = SamplingParams(temperature=1.5, top_k=4)
    weights = np.exp(logits[:4] / 1.5)
    expected = weights / weights.sum() * 20_000
    uniforms = (np.arange(20_000) + 0.5) / 20_000
    drawn = np.bincount([draw_one(logits, params, u) for u in uniforms], minlength=5)
    assert drawn[4] == 0
    np.testing.assert_allclose(drawn[:4], expected, atol=1.5)


def test_the_last_uniform_still_draws_a_candidate():
    logits = np.zeros(10, np.float32)
    assert draw_one(logits, SamplingParams(temperature=1.0), np.nextafter(1.0, 0.0)) == 9
    assert draw_one(logits, SamplingParams(temperature=1.0), 0.0) == 0


def test_greedy_and_drawn_rows_in_one_call():
    logits = np.random.default_rng(1).normal(0, 2, (3, 500)).astype(np.float32)
    params = [SamplingParams(), SamplingParams(temperature=0.7, top_k=5), SamplingParams()]
    rows = [Sequence(i, np.array([1], np.int32), p, seed=i, max_tokens=9) for i, p in enumerate(params)]
    tokens = Sampler().draw(logits, rows)
    assert tokens[0] == logits[0].argmax()
    assert tokens[2] == logits[2].argmax()
    assert tokens[1] == draw_one(logits[1], params[1], Uniforms(1).at(0))


@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf])
def test_logits_that_are_no_distribution_draw_nothing(bad):
    logits = np.full((2, 8), bad, np.float32)
    logits[1] = 1.0
    rows = [Sequence(i, np.array([1], np.int32), SamplingParams(), seed=i, max_tokens=9) for i in range(2)]
    assert Sampler().draw(logits, rows) == [None, 0]


def test_uniforms_depend_on_seed_and_step_alone():
    in_order = Uniforms(7)
    values = [in_order.at(t) for t in range(3 * BLOCK)]
    assert [Uniforms(7).at(t) for t in (0, 5, BLOCK - 1, BLOCK, 2 * BLOCK + 3)] == [
        values[t] for t in (0, 5, BLOCK - 1, BLOCK, 2 * BLOCK + 3)
    ]
    assert len(set(values)) == len(values)
    assert Uniforms(8).at(0) != values[0]
    assert 0.4 < np.mean(values) < 0.6
