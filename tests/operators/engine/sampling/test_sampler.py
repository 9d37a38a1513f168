"""The sampler: exact selection, its own distribution, and bits that depend on the row alone."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.engine.sampling.logit_edits import Patch, forbid
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.sampler import Sampler
from operators.engine.sampling.top_k import block_maxima, fits, patch_maxima, top_tokens
from operators.engine.sampling.whole_vocabulary import Full, Scratch
from tests.operators.engine.sampling.rows import row
from tests.sets import often

pytestmark = pytest.mark.slow("draws often enough to see frequencies")

REAL = 151_936
"""Words of a common vocabulary."""
KINDS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.5, "frequency_penalty": 0.3},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"temperature": 1.1, "top_k": 30, "dry_multiplier": 0.8, "logit_bias": ((5, 3.0), (9, -2.0))},
    {"temperature": 1.1, "top_k": 20, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"temperature": 0.9, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "typical_p": 0.7},
    {"temperature": 1.0, "top_n_sigma": 1.5},
    {"temperature": 1.3},
    {"temperature": 1.0},
    {"temperature": 1.0, "mirostat": 2},
    {"temperature": 1.0, "top_k": 50, "dynatemp_range": 0.5},
    {"temperature": 1.0, "top_k": 50, "typical_p": 0.8, "top_n_sigma": 1.0, "logprobs": 3},
]


def by_sorting(logits: np.ndarray, k: int) -> list[int]:
    return np.lexsort((np.arange(len(logits)), -logits))[:k].tolist()


def top_of(logits: np.ndarray, k: int, patches: dict[int, Patch]) -> list[list[int]]:
    """The top k of each row by way of the block maxima, or of selection where that gives a row back."""
    scratch = Scratch(logits.shape[1])
    found: dict[int, list[int]] = {}
    if fits(scratch, k):
        everyone = range(len(logits))
        maxima = block_maxima(logits, everyone, scratch)
        patch_maxima(logits, everyone, maxima, patches, scratch)
        done, ids, values = top_tokens(logits, everyone, maxima, k, patches, scratch)
        found = dict(zip(done, ids.tolist(), strict=True))
        assert all((np.diff(v) <= 0).all() for v in values)
    for i in set(range(len(logits))) - found.keys():
        full = Full(logits[i], scratch)
        if i in patches:
            full.writable()[patches[i].ids] = patches[i].values
        full.keep_top(min(k, logits.shape[1]))
        assert full.few is not None
        found[i] = full.few.ids[0].tolist()
    return [found[i] for i in range(len(logits))]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_vocab=st.integers(1, 9000),
    k=st.sampled_from([1, 2, 7, 40, 100]),
    rows=st.integers(1, 5),
    ties=st.booleans(),
    patched=st.booleans(),
)
def test_top_tokens_are_those_of_a_full_sort(seed, n_vocab, k, rows, ties, patched):
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, (rows, n_vocab)).astype(np.float32)
    if ties:
        logits = np.round(logits)
        logits[random.random(logits.shape) < 0.3] = -np.inf
        logits[:, random.integers(n_vocab)] = 1
    logits[:, -1] = 20  # the last token is in no block
    changed = logits.copy()
    patches = {}
    if patched:
        for i in range(0, rows, 2):
            banned = set(by_sorting(logits[i], k // 2 + 1)) | {n_vocab - 1}
            patches[i] = Patch(logits[i], [forbid(banned)])
            changed[i, list(banned)] = -np.inf
    before = logits.copy()
    assert top_of(logits, k, patches) == [by_sorting(line, k) for line in changed]
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("n_vocab", often([320, 4096, 20_011, REAL], 320, 20_011))
def test_a_row_draws_the_same_in_any_company_and_its_logits_stay_as_they_are(n_vocab):
    """To the bit, in batches of 1, 2, 7, 16 and 32, at any place, beside rows of other parameters."""
    random = np.random.default_rng(1)
    logits = random.normal(0, 2, (32, n_vocab)).astype(np.float32)
    params = [SamplingParams(**KINDS[i % len(KINDS)]) for i in range(32)]
    shared = {repr(p): p for p in params}
    params = [shared[repr(p)] for p in params]
    history = [random.integers(0, n_vocab, 50).tolist() for _ in range(32)]

    def outcome(places: Seq[int], of: np.ndarray) -> dict[int, tuple[object, ...]]:
        rows = [row(i, params[i], history[i], history[i][:7]) for i in places]
        tokens = sampler.draw(of, rows)
        return {i: (t, r.sampling.mirostat_mu, r.sampling.scored) for i, t, r in zip(places, tokens, rows, strict=True)}

    sampler = Sampler()
    before = logits.copy()
    alone: dict[int, tuple[object, ...]] = {}
    for i in range(32):
        alone |= outcome([i], logits[i : i + 1])
    for size in (2, 7, 16, 32):
        order = random.permutation(32).tolist()
        for start in range(0, 32, size):
            places = order[start : start + size]
            assert outcome(places, np.ascontiguousarray(logits[places])) == {i: alone[i] for i in places}
    np.testing.assert_array_equal(logits, before)


def chi_square(drawn: np.ndarray, expected: np.ndarray) -> float:
    """In standard deviations above its mean; cells that are expected fewer than 5 times count as one."""
    rare = expected < 5
    drawn = np.append(drawn[~rare], drawn[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] == 0:
        assert drawn[-1] == 0
        drawn, expected = drawn[:-1], expected[:-1]
    freedom = len(expected) - 1
    return float((((drawn - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize("n_vocab", [50, pytest.param(3001, marks=pytest.mark.laws)])
@pytest.mark.parametrize(
    ("values", "cut"),
    [
        ({"temperature": 1.0}, 0),
        ({"temperature": 1.7}, 0),
        ({"temperature": 0.7, "top_k": 12}, 12),
        ({"temperature": 1.5, "top_k": 25}, 25),
    ],
)
def test_drawn_frequencies_follow_the_distribution(n_vocab, values, cut):
    """8,000 draws of 8,000 rows; fixed seeds, so the outcome is fixed."""
    logits = np.random.default_rng(3).normal(0, 2, n_vocab).astype(np.float32)
    kept = by_sorting(logits, cut or n_vocab)
    weights = np.zeros(n_vocab)
    weights[kept] = np.exp(logits[kept].astype(np.float64) / values["temperature"])
    params = SamplingParams(**values)
    drawn: list[int | None] = []
    for start in range(0, 8_000, 500):
        rows = [row(i, params) for i in range(start, start + 500)]
        drawn += Sampler().draw(np.broadcast_to(logits, (500, n_vocab)), rows)
    counts = np.bincount([t for t in drawn if t is not None], minlength=n_vocab)
    assert counts.sum() == 8_000
    assert chi_square(counts, weights / weights.sum() * 8_000) < 3


def test_xtc_happens_as_often_as_asked_for():
    logits = np.array([3.0, 2.5, 2.0, -4.0], np.float32)
    params = SamplingParams(temperature=1.0, xtc_probability=0.3, xtc_threshold=0.1)
    rows = [row(i, params) for i in range(4000)]
    tokens = Sampler().draw(np.broadcast_to(logits, (4000, 4)), rows)
    best = np.exp(3.0) / np.exp(logits.astype(np.float64)).sum()
    assert abs(tokens.count(0) / 4000 - 0.7 * best) < 0.02


@pytest.mark.parametrize("n_vocab", [10, 4096, 5000])
def test_the_ends_of_the_unit_interval_draw_candidates(n_vocab, monkeypatch):
    logits = np.full(n_vocab, -np.inf, np.float32)
    logits[3:8] = 0.0
    kinds: list[dict[str, Any]] = [{"temperature": 0.5}, {"temperature": 0.5, "top_k": 4}]
    for kind in kinds:
        drawn = []
        for uniform in (0.0, np.nextafter(1.0, 0.0)):
            one = row(0, SamplingParams(**kind))
            one.sampling._uniforms = type("Fixed", (), {"at": lambda self, step, draw=0, u=uniform: u})()
            drawn += Sampler().draw(logits[None, :], [one])
        assert all(t is not None and 3 <= t < 8 for t in drawn)


@pytest.mark.parametrize("temperature", [1e-46, 1e-30, 100.0])
@pytest.mark.parametrize("top_k", [0, 5])
def test_extreme_temperatures_give_tokens(temperature, top_k):
    logits = np.random.default_rng(6).normal(0, 300, (2, 5000)).astype(np.float32)
    params = SamplingParams(temperature=temperature, top_k=top_k)
    tokens = Sampler().draw(logits, [row(i, params) for i in range(2)])
    assert None not in tokens
    if temperature < 1:
        assert tokens == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_logits_that_are_no_distribution_draw_nothing(bad, kind):
    logits = np.full((3, 5000), bad, np.float32)
    logits[1] = 1.0
    logits[2] = 1.0
    logits[2, 4999] = np.nan
    params = SamplingParams(**kind)
    first, second, third = Sampler().draw(logits, [row(i, params) for i in range(3)])
    assert first is None
    assert second is not None
    assert third is None


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_row_whose_every_token_is_forbidden_draws_nothing(kind):
    logits = np.zeros((1, 300), np.float32)
    values = kind | {"bad_words": tuple((i,) for i in range(300))}
    assert Sampler().draw(logits, [row(0, SamplingParams(**values))]) == [None]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_forbidden_tokens_never_come(kind):
    logits = np.zeros((1, 30), np.float32)
    logits[0, 7] = 9.0
    logits[0, 8] = 8.0
    values = kind | {"bad_words": ((7,), (4, 5, 8)), "min_tokens": 3, "end_ids": frozenset({9})}
    params = SamplingParams(**values)
    for seed in range(20):
        assert Sampler().draw(logits, [row(seed, params, [1, 2, 3], [4, 5])])[0] not in (7, 8, 9)
    # The word of several tokens only where its beginning stands, also in the prompt; the end once there are enough.
    free = SamplingParams(**(values | {"temperature": 0.0, "xtc_probability": 0.0, "typical_p": 1.0, "mirostat": 0}))
    assert Sampler().draw(logits, [row(0, free, [4, 5])]) != [8]
    assert Sampler().draw(logits, [row(0, free, [5, 5], [5, 4])]) == [8]
    logits[0, 9] = 20.0
    assert Sampler().draw(logits, [row(0, free, [1], [1, 1])]) != [9]
    assert Sampler().draw(logits, [row(0, free, [1], [1, 1, 1])]) == [9]


def test_logprobs_are_those_of_the_model_before_the_chain():
    logits = np.random.default_rng(4).normal(0, 2, (2, 5000)).astype(np.float32)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    params = SamplingParams(temperature=0.3, top_k=5, logprobs=4, logit_bias=((7, 20.0),))
    rows = [row(i, params) for i in range(2)]
    for i, token in enumerate(Sampler().draw(logits, rows)):
        scored = rows[i].sampling.scored
        assert scored is not None
        assert token == 7
        assert scored.logprob == pytest.approx(exact[i, 7], abs=1e-5)
        assert [t for t, _ in scored.top] == by_sorting(logits[i], 4)
        assert [p for _, p in scored.top] == pytest.approx([exact[i, t] for t, _ in scored.top], abs=1e-5)
        rows[i].append(7)
        assert rows[i].sampling.scores == [scored]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_step_allocates_nothing_of_the_vocabularys_size(kind):
    def peak_bytes(n_vocab: int) -> int:
        logits = np.random.default_rng(5).normal(0, 2, (4, n_vocab)).astype(np.float32)
        sampler, params = Sampler(), SamplingParams(**kind)
        rows = [row(i, params) for i in range(4)]
        sampler.draw(logits, rows)
        tracemalloc.start()
        sampler.draw(logits, rows)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    assert peak_bytes(2 * REAL) - peak_bytes(REAL) < REAL  # not even a flag for each word that was added


A, B, C, D, X, Y = range(6)
