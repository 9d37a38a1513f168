"""What is drawn from the likeliest words of a row is what is drawn from all, or it is known that they do not say it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from operators.engine.backend.fake import likeliest_words
from operators.engine.backend.shape import CANDIDATES
from operators.engine.sampling.params import MOST_TOP_K, SamplingParams
from operators.engine.sampling.reduced import suffice, why_all
from operators.engine.sampling.sampler import Sampler
from operators.settings.sampling import SamplingSettings
from operators.settings.structured import StructuredSettings
from tests.operators.engine.sampling.rows import row
from tests.operators.engine.sampling.test_plain import ACTS

KINDS: list[dict[str, Any]] = [
    {},
    {"bad_words": ((3,), (7, 8), (2, 9)), "min_tokens": 9, "end_ids": frozenset(range(40, 60))},
    {"repetition_penalty": 1.5, "frequency_penalty": 0.3, "penalty_last_n": None},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"temperature": 1.1, "top_k": MOST_TOP_K, "dry_multiplier": 0.8, "logit_bias": ((5, -3.0), (9, -np.inf))},
    {"temperature": 1.1, "top_k": 20, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"temperature": 1.0, "top_k": 50, "dynatemp_range": 0.5},
    {"temperature": 1.0, "top_k": 50, "typical_p": 0.8, "top_n_sigma": 1.0, "order": ("top_k", "typical_p")},
    {"temperature": 1.3, "top_k": 30, "repetition_penalty": 0.5, "order": ("top_k", "penalties", "temperature")},
]
NEEDS_ALL: dict[str, dict[str, Any]] = {
    "top_k": {"temperature": 1.0, "top_k": MOST_TOP_K + 1},
    "without sampling.top_k": {"temperature": 1.0, "top_p": 0.9, "top_k": 0},
    "first step": {"temperature": 1.0, "top_k": 9, "top_n_sigma": 1.0},
    "logprobs": {"logprobs": 0},
    "mirostat": {"temperature": 1.0, "mirostat": 2},
    "penalty": {"repetition_penalty": 0.9},
    "a penalty": {"presence_penalty": -1.0},
}


def drawn(logits: np.ndarray, values: dict[str, Any], keys: np.ndarray | None = None) -> list[int | None]:
    """What rows with the same parameters draw from their lines of `logits`, or of `keys`."""
    params = SamplingParams(**values)
    rows = [row(i, params, tokens=(3, 4, 5, 3, 4)) for i in range(len(logits))]
    if keys is None:
        return Sampler().draw(logits, rows)
    assert suffice(keys, rows)
    return Sampler().draw(keys, rows, range(len(rows)))


@pytest.mark.parametrize("values", KINDS)
@pytest.mark.parametrize("step", [0.0, 0.25], ids=["", "ties"])
def test_candidates_that_suffice_draw_what_all_words_do(values, step):
    """With ties, too: a quarter of a nat apart are some thirty words of three thousand each."""
    rng = np.random.default_rng(7)
    logits = rng.normal(0, 3, (24, 3000)).astype(np.float32)
    logits[:, rng.integers(0, 3000, 200)] = -np.inf
    if step:
        logits[::2] = np.round(logits[::2] / step) * step
    logits[5], logits[6, 1000] = -np.inf, np.inf
    assert SamplingParams(**values).needs_all is None
    keys = likeliest_words(logits, CANDIDATES)
    enough = [
        i for i in range(24) if suffice(keys[i : i + 1], [row(i, SamplingParams(**values), tokens=(3, 4, 5, 3, 4))])
    ]
    assert len(enough) >= 12
    assert drawn(logits[enough], values, keys[enough]) == drawn(logits[enough], values)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_key_draws_the_same_from_candidates_or_needs_all(temperature):
    """A new key that raises words or looks at all of them has to be in `needs_all`."""
    logits = np.random.default_rng(3).normal(0, 2, (12, 900)).astype(np.float32)
    needing = set()
    for name, values in ACTS.items():
        values = {"temperature": temperature, "top_k": 30, **values}
        if SamplingParams(**values).needs_all is None:
            assert drawn(logits, values, likeliest_words(logits, CANDIDATES)) == drawn(logits, values), name
        else:
            needing.add(name)
    assert needing >= {"logit_bias", "logprobs", "mirostat"}
    assert len(needing) < len(ACTS) // 2


def test_words_as_likely_as_the_last_candidate_are_not_decided_among_candidates():
    """The device has taken others than the sampler would: those with the highest ids."""
    logits = np.full((1, 400), -1.0, np.float32)
    logits[0, 300:304] = 5.0
    keys = likeliest_words(logits, CANDIDATES)
    for top_k, enough in ((1, True), (4, True), (5, False), (40, False)):
        params = SamplingParams(temperature=1.0, top_k=top_k)
        assert suffice(keys, [row(0, params)]) is enough
    assert not suffice(keys, [row(0, SamplingParams(bad_words=tuple((i,) for i in range(300, 304))))])
    logits[:] = 2.5  # all alike
    assert not suffice(likeliest_words(logits, CANDIDATES), [row(0, SamplingParams())])
    logits[0, :3] = 3.0
    assert drawn(logits, {}, likeliest_words(logits, CANDIDATES)) == [0]


def test_a_row_that_is_no_distribution_draws_nothing():
    logits = np.random.default_rng(0).normal(size=(3, 400)).astype(np.float32)
    logits[0], logits[1, 7] = -np.inf, np.nan
    keys = likeliest_words(logits, CANDIDATES)
    for values in ({}, {"temperature": 1.0, "top_k": 5}, {"bad_words": ((3,),)}):
        tokens = drawn(logits, values, keys)
        assert tokens[:2] == [None, None]
        assert tokens[2] is not None


@pytest.mark.parametrize("reason", NEEDS_ALL)
def test_what_needs_all_words_says_why(reason):
    params, settings = SamplingParams(**NEEDS_ALL[reason]), SamplingSettings(**NEEDS_ALL[reason])
    assert reason.split(" ")[-1] in (params.needs_all or "")
    assert why_all(settings) == params.needs_all


def test_the_usual_sampling_needs_no_more_and_a_bias_or_a_constraint_does():
    assert why_all(SamplingSettings()) is why_all(SamplingSettings(temperature=0.8)) is None
    assert why_all(SamplingSettings(logit_bias={5: -1.0})) is None
    assert "sampling.logit_bias" in (why_all(SamplingSettings(logit_bias={5: 1.0, "word": -1.0})) or "")
    assert "sampling.structured.regex" in (why_all(SamplingSettings(structured=StructuredSettings(regex="a+"))) or "")
    assert why_all(SamplingSettings(logprobs=3, per_row=["temperature"])) is None
