"""Rows that the sampler may give the likeliest token: those of which no other parameter acts."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.sampler import Sampler
from tests.operators.engine.sampling.rows import row

NO_STEP = {"max_tokens", "stop_ids", "kept_stop_ids", "end_ids", "penalty_last_n", "dry_base", "dry_allowed_length"}


NO_STEP |= {"dry_penalty_last_n", "dry_breakers", "xtc_threshold", "mirostat_tau", "mirostat_eta", "dynatemp_exponent"}
"""Fields that do nothing by themselves."""


ACTS: dict[str, dict[str, Any]] = {
    "min_tokens": {"min_tokens": 9, "end_ids": frozenset(range(20))},
    "logit_bias": {"logit_bias": tuple((token, 9.0) for token in range(0, 40, 3))},
    "bad_words": {"bad_words": tuple((token, other) for token in range(40) for other in range(0, 40, 2))},
    "repetition_penalty": {"repetition_penalty": 5.0},
    "presence_penalty": {"presence_penalty": 5.0},
    "frequency_penalty": {"frequency_penalty": 5.0},
    "dry_multiplier": {"dry_multiplier": 9.0, "dry_allowed_length": 1},
    "temperature": {"temperature": 2.0},
    "dynatemp_range": {"temperature": 2.0, "dynatemp_range": 1.0},
    "mirostat": {"temperature": 2.0, "mirostat": 2},
    "xtc_probability": {"xtc_probability": 1.0},
    "typical_p": {"typical_p": 0.2},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.5},
    "min_p": {"min_p": 0.5},
    "top_n_sigma": {"top_n_sigma": 1.0},
    "logprobs": {"logprobs": 2},
    "order": {"order": ("temperature",), "repetition_penalty": 5.0},
    "constraint": {},  # has tests of its own
}
"""A value of each field, at temperature 0 unless it is of it, that acts if any does."""


def test_what_is_plain_draws_what_the_steps_would_and_each_field_is_tried():
    """A key that edits logits and is missing in `plain` would be skipped by all greedy rows."""
    assert ACTS.keys() | NO_STEP == {each.name for each in fields(SamplingParams)}
    rng, sampler = np.random.default_rng(0), Sampler()
    for name, values in ACTS.items():
        for _ in range(8):
            logits = rng.normal(size=(1, 40)).astype(np.float32)
            drawn = []
            for plain in (None, False):
                params = SamplingParams(**values)
                if plain is not None:
                    vars(params)["plain"] = plain
                one = row(1, params, tokens=(3, 4, 5, 3, 4))
                drawn.append((sampler.draw(logits, [one]), repr(one.sampling.scored)))
            assert drawn[0] == drawn[1], name
