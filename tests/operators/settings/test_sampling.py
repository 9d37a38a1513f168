"""Which sampling values a job can have."""

from __future__ import annotations

from typing import Any

import pytest

from operators.settings import SamplingSettings
from pipeline.api.errors import ConfigError

BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -0.1}, "0 (greedy) to 100"),
    ({"temperature": float("nan")}, "0 (greedy) to 100"),
    ({"top_k": -1}, "0 (off) or more"),
    ({"top_p": 0.0}, "above 0, up to 1 (1 is off)"),
    ({"top_p": 1.5}, "above 0, up to 1 (1 is off)"),
    ({"min_p": 1.0}, "0 (off) up to, not including, 1"),
    ({"typical_p": 0.0}, "above 0, up to 1 (1 is off)"),
    ({"top_n_sigma": -1.0}, "0 (off) to 1000"),
    ({"repetition_penalty": 0.0}, "0.01 to 100; 1 is off"),
    ({"presence_penalty": float("inf")}, "-100 to 100; 0 is off"),
    ({"frequency_penalty": -101.0}, "-100 to 100; 0 is off"),
    ({"penalty_last_n": -1}, "0 (off) or more; null looks back on the whole row"),
    ({"dry_multiplier": -1.0}, "0 (off) to 100"),
    ({"dry_base": 0.5}, "1 to 100"),
    ({"dry_allowed_length": -1}, "0 or more"),
    ({"dry_penalty_last_n": -2}, "0 (off) or more; null looks back on the whole row"),
    ({"dry_sequence_breakers": [""]}, "strings of at least one character"),
    ({"xtc_probability": 1.1}, "0 (off) to 1"),
    ({"xtc_threshold": 0.0}, "above 0, up to 1; above 0.5 it has no effect"),
    ({"mirostat": 1}, "0 (off) or 2"),
    ({"mirostat_tau": 0.0}, "above 0, up to 100"),
    ({"mirostat_eta": 0.0}, "above 0, up to 100"),
    ({"dynatemp_range": -0.5}, "0 (off) to 100"),
    ({"dynatemp_exponent": 0.0}, "above 0, up to 100"),
    ({"max_tokens": 0}, "1 or more"),
    ({"min_tokens": 257}, "0 (off) to max_tokens, which is 256"),
    ({"logprobs": -1}, "null (off), or 0 to 1000 likeliest tokens"),
    ({"stop": [""]}, "strings of at least one character"),
    ({"stop_token_ids": [-1]}, "token ids, 0 or more"),
    ({"bad_words": [""]}, "strings, token ids, or lists of token ids, none empty"),
    ({"bad_words": [[]]}, "strings, token ids, or lists of token ids, none empty"),
    ({"order": ["top_k", "top_q"]}, "each at most once: penalties, dry"),
    ({"order": ["top_k", "top_k"]}, "each at most once: penalties, dry"),
    ({"order": ["top_k"]}, "each at most once: penalties, dry"),
]


@pytest.mark.parametrize(("values", "allowed"), [*BROKEN, ({"n": 0}, "1 to 10000")], ids=str)
def test_nonsense_is_refused(values, allowed):
    ((key, value),) = values.items()
    with pytest.raises(ConfigError) as raised:
        SamplingSettings(**values)
    assert f"sampling.{key}={value!r} cannot work: allowed: {allowed}" in str(raised.value)


@pytest.mark.parametrize("bias", [{-1: 1.0}, {"": 1.0}, {7: float("nan")}, {7: float("inf")}, {7.5: 1.0}])
def test_a_bias_that_cannot_work_is_refused(bias):
    with pytest.raises(ConfigError, match=r"sampling\.logit_bias=.*mapping of token ids \(numbers\) or strings"):
        SamplingSettings(logit_bias=bias)
