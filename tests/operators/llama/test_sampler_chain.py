"""Every step leaves what llama.cpp's own sampler leaves: the same candidates, the same probabilities."""

from __future__ import annotations

import functools
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.engine.sampling.logit_edits import Patch, changes_of
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.penalties import Breakers
from operators.engine.sampling.whole_vocabulary import Full, Scratch
from operators.engine.sequence import Sequence
from operators.generation.sampling_params import dry_breakers
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from tests.operators.llama.reference_chain import ReferenceChain

MODEL = Path(__file__).parents[3] / "models/tiny/tiny-q8_0.gguf"
TIES = {"top_k", "typical_p", "top_p"}
"""Steps after which llama.cpp's order among equal logits decides, and is not specified."""


def row_of(params: SamplingParams, tokens: Seq[int] = (0,), seed: int = 0) -> Sequence:
    return Sequence(0, np.array(tokens, np.int32), params, seed, max_tokens=10**6)


def warm(values: dict[str, Any]) -> Sequence:
    return row_of(SamplingParams(**({"temperature": 1.0} | values)))


def ours(logits: np.ndarray, row: Sequence) -> dict[int, float]:
    """Token to probability after the chain, by the steps over the whole vocabulary and then over the few."""
    scratch = Scratch(len(logits))
    full = Full(logits, scratch)
    if changes := changes_of(row):
        patch = Patch(logits, changes)
        full.writable()[patch.ids] = patch.values
    if row.params.chain.greedy:
        return {int(full.values.argmax()): 1.0}
    for step in row.params.chain.steps:
        if full.few is None:
            step.full(full, row)
        else:
            step.few(full.few, [row])
    if full.few is not None:
        ids, probabilities = full.few.ids[0], full.few.probabilities()[0]
    else:
        weights = full.weights().astype(np.float64)
        ids, probabilities = np.arange(len(logits)), weights / weights.sum()
    return {i: p for i, p in zip(ids.tolist(), probabilities.tolist(), strict=True) if p > 0}


def theirs(logits: np.ndarray, row: Sequence, vocab: object | None = None, breakers: Seq[str] = ()) -> dict[int, float]:
    chain = ReferenceChain(row.params, len(logits), vocab, breakers)
    for token in row.prompt.tolist() + row.tokens:
        chain.accept(token)
    return chain.candidates(logits)


def assert_same(a: dict[int, float], b: dict[int, float], atol: float = 1e-5, cut_mass: float = 3e-5) -> None:
    """`cut_mass`: what candidates may weigh that only one has. llama.cpp adds up in float32 from left to right, which
    decides where a cut falls among the least likely."""
    ids = sorted(a.keys() & b.keys())
    only = sum(a.get(i, 0) + b.get(i, 0) for i in a.keys() ^ b.keys())
    assert only <= cut_mass
    np.testing.assert_allclose([a[i] for i in ids], [b[i] for i in ids], atol=atol + only, rtol=0)


def assert_alike(logits: np.ndarray, row: Sequence) -> None:
    assert_same(ours(logits, row), theirs(logits, row))


def logits_of(seed: int, n_vocab: int, ties: bool = False, holes: bool = False, spread: float = 3.0) -> np.ndarray:
    random = np.random.default_rng(seed)
    logits = random.normal(0, spread, n_vocab).astype(np.float32)
    if ties:
        logits = np.round(logits * 2) / np.float32(2)
    if holes:
        logits[random.random(n_vocab) < 0.3] = -np.inf
        logits[random.integers(n_vocab)] = 1.0
    return logits


SINGLE: list[dict[str, Any]] = [
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 700},
    {"top_k": 10**6},
    {"top_p": 0.9},
    {"top_p": 0.31},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 1e-4},
    {"typical_p": 0.9},
    {"typical_p": 0.2},
    {"top_n_sigma": 1.0},
    {"top_n_sigma": 2.5},
    {"temperature": 0.7},
    {"temperature": 2.5},
    {"temperature": 0.0},
    {"dynatemp_range": 0.5, "dynatemp_exponent": 1.3},
    {"temperature": 0.4, "dynatemp_range": 0.9},
]
TOGETHER: list[dict[str, Any]] = [
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 1.3, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 0.8, "top_k": 60, "typical_p": 0.8, "top_p": 0.9, "dynatemp_range": 0.3},
    {"top_n_sigma": 1.2, "top_k": 50, "min_p": 0.01, "temperature": 0.6},
    {"top_n_sigma": 1.0, "top_p": 0.97, "dynatemp_range": 0.5},
    {"order": ("temperature", "top_k", "top_p"), "temperature": 1.7, "top_k": 30, "top_p": 0.8},
    {"order": ("temperature", "min_p", "typical_p", "top_k"), "temperature": 1.7, "top_k": 9, "typical_p": 0.9},
    {"order": ("min_p", "temperature", "top_p"), "temperature": 0.5, "min_p": 0.001, "top_p": 0.9},
]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_vocab=st.sampled_from([1, 2, 17, 320, 2000]),
    holes=st.booleans(),
    values=st.sampled_from(SINGLE + TOGETHER),
)
def test_candidates_and_probabilities_are_those_of_llama_cpp(seed, n_vocab, holes, values):
    nan_in_llama = holes and ("typical_p" in values)  # 0 * log(0): llama.cpp's entropy of impossible candidates is NaN
    logits = logits_of(seed, n_vocab, holes=holes and not nan_in_llama)
    assert_alike(logits, warm(values))


@pytest.mark.parametrize("values", [v for v in SINGLE if not TIES & v.keys()])
def test_equal_logits_are_treated_alike(values):
    logits = logits_of(3, 2000, ties=True, holes=True)
    row = warm(values)
    if values.get("temperature") == 0.0:
        assert ours(logits, row) == {int(logits.argmax()): 1.0}
    else:
        assert_alike(logits, row)


@pytest.mark.parametrize("values", [v for v in SINGLE if TIES & v.keys()])
def test_of_equal_logits_those_with_the_lowest_ids_stay(values):
    """As many as in llama.cpp, with the same probabilities; which of equal ones it keeps it does not say."""
    logits = logits_of(4, 2000, ties=True, holes=False)
    row = warm(values)
    found, expected = ours(logits, row), theirs(logits, row)
    pairs = zip(sorted(found.values(), reverse=True), sorted(expected.values(), reverse=True), strict=False)
    assert all(abs(p - q) < 1e-5 for p, q in pairs)
    assert abs(len(found) - len(expected)) <= 1  # where float32 puts the cut
    for value in np.unique(logits[list(found)]):
        equal = np.flatnonzero(logits == value)
        kept = [i for i in equal.tolist() if i in found]
        assert kept == equal[: len(kept)].tolist()


@pytest.mark.parametrize("values", SINGLE + TOGETHER[:5], ids=str)
@pytest.mark.parametrize("spread", [pytest.param(0.5, marks=pytest.mark.laws), 4.0])
def test_at_the_size_of_a_real_vocabulary(values, spread):
    """Flat distributions, where the candidates that are tried first do not suffice, and steep ones."""
    logits = logits_of(5, 151_936, spread=spread)
    row = warm(values)
    # llama.cpp adds up 150,000 numbers in float32
    assert_same(ours(logits, row), theirs(logits, row), atol=1e-4, cut_mass=2e-3)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), length=st.integers(0, 200), last_n=st.sampled_from([0, 1, 5, 64, 500, None]))
def test_penalties(seed, length, last_n):
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 50, length).tolist()
    logits = logits_of(seed, 400, holes=seed % 2 == 0)
    params = SamplingParams(
        temperature=1.0,
        penalty_last_n=last_n,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=-0.2,
        logit_bias=((3, 2.5), (399, -1.0), (7, -np.inf)),
    )
    row = row_of(params, tokens[: length // 2])
    row.tokens = tokens[length // 2 :]
    assert_alike(logits, row)


@functools.cache
def tiny() -> LlamaModel:
    return LlamaModel(ModelSettings(path=str(MODEL)))


BREAKERS = ("\n", ":", " the", "and then")


@functools.cache
def breakers() -> Breakers:
    return dry_breakers(tiny(), BREAKERS)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    words=st.integers(1, 9),
    length=st.integers(0, 150),
    last_n=st.sampled_from([0, 3, 64, 1000, None]),
    base=st.sampled_from([1.0, 1.75, 4.0]),
    allowed=st.integers(0, 4),
    broken=st.booleans(),
)
def test_dry(seed, words, length, last_n, base, allowed, broken):
    random = np.random.default_rng(seed)
    model = tiny()
    ids = model.tokenize([b"a b: the\nand then it was", b"red and then the fox: ran"], special=True)[0]
    tokens = random.choice(random.permutation(ids)[:words], length).tolist()
    logits = logits_of(seed, model.n_vocab)
    params = SamplingParams(
        temperature=1.0,
        dry_multiplier=0.8,
        dry_base=base,
        dry_allowed_length=allowed,
        dry_penalty_last_n=last_n,
        dry_breakers=breakers() if broken else Breakers(),
    )
    row = row_of(params, tokens)
    assert_same(ours(logits, row), theirs(logits, row, model._vocab, BREAKERS if broken else ()))


@pytest.mark.parametrize(("probability", "threshold"), [(1.0, 0.1), (1.0, 0.02), (1.0, 0.5), (1.0, 0.9), (0.0, 0.1)])
@pytest.mark.parametrize("n_vocab", [1, 2, 20, 9001])
@pytest.mark.parametrize("top_k", [0, 12])
def test_xtc(probability, threshold, n_vocab, top_k):
    params = SamplingParams(temperature=1.0, top_k=top_k, xtc_probability=probability, xtc_threshold=threshold)
    for seed in range(10):
        logits = logits_of(seed, n_vocab)
        assert_alike(logits, row_of(params))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("n_vocab", [1, 30, 9001])
def test_mirostat_moves_as_in_llama_cpp(temperature, n_vocab):
    """Candidates at each step, when both draw the same tokens: llama.cpp's choice is forced on our row."""
    params = SamplingParams(temperature=temperature, mirostat=2, mirostat_tau=3.0, mirostat_eta=0.3, top_k=5)
    chain = ReferenceChain(params, n_vocab, seed=7)
    row = row_of(params)
    step = params.chain.steps[-1]
    for t in range(25):
        logits = logits_of(t, n_vocab)
        found = ours(logits, row)
        array = chain.apply(logits)
        left = {array.data[i].id: array.data[i].p for i in range(array.size) if array.data[i].p > 0}
        assert_same(found, left, atol=2e-5)
        token = array.data[array.selected].id
        step.drawn(row, found[token])  # type: ignore[attr-defined]
