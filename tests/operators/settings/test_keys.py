"""What each key of the settings says of itself, that runs of before go on where a version has a key more, and which
sampling values a job can have."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest

from operators.engine.backend.loading import model_key
from operators.engine.strategies.block_diffusion.setup import check_sampling
from operators.settings import DataSettings, ModelSettings, OutputSettings, SamplingSettings, StoreSettings
from operators.settings.block_diffusion import BlockDiffusionSettings
from operators.settings.endpoint import EndpointSettings
from operators.settings.runtime import EngineSettings
from operators.settings.speculative import SpeculativeSettings
from operators.settings.structured import StructuredSettings
from pipeline.api.errors import ConfigError
from pipeline.api.keys import when_given
from pipeline.config.fingerprint import flat

GROUPS: dict[str, Any] = {
    "model": ModelSettings(),
    "endpoint": EndpointSettings(url="http://server/v1"),
    "sampling": SamplingSettings(),
    "sampling.structured": StructuredSettings(),
    "runtime": EngineSettings(),
    "data": DataSettings(),
    "output": OutputSettings(),
    "store": StoreSettings(),
    "decode": BlockDiffusionSettings(),
    "speculative": SpeculativeSettings(),
}
ALWAYS: dict[str, list[str]] = {
    "model": [
        *("chat_template", "file", "gpu_layers", "loader", "options", "repo", "revision", "special_tokens_in_text"),
        "system",
    ],
    "endpoint": [
        *("api", "chat_template", "dialect", "file", "gpu_layers", "loader", "name", "options", "repo", "revision"),
        *("special_tokens_in_text", "system"),
    ],
    "sampling": [
        *("bad_words", "dry_allowed_length", "dry_base", "dry_multiplier", "dry_penalty_last_n"),
        *("dry_sequence_breakers", "dynatemp_exponent", "dynatemp_range", "frequency_penalty", "ignore_eos"),
        *("keep_stop", "logit_bias", "logprobs", "max_tokens", "min_p", "min_tokens", "mirostat", "mirostat_eta"),
        *("mirostat_tau", "n", "order", "penalty_last_n", "per_row", "presence_penalty", "repetition_penalty", "stop"),
        *("stop_token_ids", "temperature", "thinking_budget", "tools", "top_k", "top_n_sigma", "top_p", "typical_p"),
        *("xtc_probability", "xtc_threshold"),
    ],
    "sampling.structured": [
        *("after_reasoning", "choices", "grammar", "json_schema", "json_schema_column", "optional", "regex"),
        *("skip_forced", "whitespace"),
    ],
    "runtime": ["deterministic", "flash_attention", "kv_type", "max_sequence_tokens"],
    "data": [
        *("format", "id_column", "limit", "messages_column", "prompt_column", "prompt_template", "quote", "rename"),
        "schema",
    ],
    "output": ["completion_ids", "completion_text", "compression", "compression_level", "format", "prompt_text"],
    "store": ["retry.finish_reason"],
    "decode": [
        *("block_length", "confidence_threshold", "denoising_steps", "eb_threshold", "mask_token_id", "remasking"),
        *("shift_logits", "strategy"),
    ],
    "speculative": ["strategy"],
}
"""The keys that the fingerprint of a run has by group, though they are not given: those of the first version."""


@pytest.mark.parametrize("group", ["model", "endpoint", "sampling", "sampling.structured", "runtime"])
def test_each_key_says_whether_a_run_goes_on_under_another_value(group):
    assert [key.name for key in fields(GROUPS[group]) if "fingerprint" not in key.metadata] == []


@pytest.mark.parametrize("group", GROUPS)
def test_a_run_that_was_begun_without_a_key_goes_on_where_it_is_unset(group):
    """A key more in a fingerprint refuses each unfinished run of before: a new key is `when_given` or `not_in_data`."""
    found = {key.removeprefix(f"{group}.") for key, _ in flat(group, GROUPS[group])}
    assert sorted(key for key in found if not key.startswith("structured.")) == ALWAYS[group]


@dataclass
class New:
    on: bool = when_given(True)
    off: bool = when_given(False)
    names: list[str] = when_given([])
    limit: int | None = when_given(None)
    tags: list[str] | None = when_given(None)


@pytest.mark.parametrize(
    ("given", "counted"),
    [
        ({}, []),
        ({"on": True}, []),
        ({"names": [], "limit": 0, "tags": []}, ["limit", "tags"]),
        ({"on": False}, ["on"]),
        ({"off": True, "names": ["a"]}, ["names", "off"]),
    ],
)
def test_a_new_key_is_in_the_fingerprint_where_it_is_not_its_default(given, counted):
    """So a key that does what was always done by default, and can be switched off, ends no run of before."""
    assert sorted(key for key, _ in flat("new", New(**given))) == [f"new.{name}" for name in counted]


MODEL: dict[str, Any] = {
    **{"path": "a.gguf", "repo": "o/m", "file": "a.gguf", "revision": "main", "chat_template": "a.jinja"},
    **{"reasoning_tags": [], "tool_format": "hermes", "date": "2026-01-31", "weights": "bf16", "gpu_layers": 1},
    **{"device": ["CUDA0"], "split_mode": "none", "main_gpu": 0, "tensor_split": [3.0, 1.0], "cpu_moe": True},
    **{"n_cpu_moe": 2, "override_tensor": {"exps": "CPU"}, "room": EngineSettings(slots=2)},
    **{"probe": False, "options": {"a": 1}},
    **{"loader": "a:b", "system": "Be brief.", "template_kwargs": {"a": 1}, "kernels": "llama.cpp"},
    **{"special_tokens_in_text": "parse", "adapters": {"x": "a.gguf"}, "mmproj": "b.gguf", "image_tokens": {"max": 9}},
}
"""Another value for each key of a model."""


def test_a_server_may_have_the_layers_that_were_the_default():
    """Settings that an earlier version wrote, and job files, have them."""
    assert EndpointSettings(url="http://server/v1", gpu_layers=0).gpu_layers == 0


@pytest.mark.parametrize("key", fields(ModelSettings), ids=lambda key: key.name)
def test_each_key_of_a_model_says_whether_a_server_takes_it_and_whether_it_changes_what_is_loaded(key):
    other = {key.name: MODEL[key.name]}
    if key.metadata["local"]:
        with pytest.raises(ConfigError, match=rf"model\.{key.name}=.* is of a model in this process"):
            EndpointSettings(url="http://server/v1", **other)
    else:
        assert getattr(EndpointSettings(url="http://server/v1", **other), key.name) == MODEL[key.name]
    same_weights = key.metadata.get("prompts", False) or not key.metadata.get("loads", True)
    assert (model_key(ModelSettings(**other)) == model_key(ModelSettings())) == same_weights


@pytest.mark.parametrize("key", fields(SamplingSettings), ids=lambda key: key.name)
def test_each_key_of_sampling_says_whether_blocks_can_have_it(key):
    """Or beside which others it has an effect, of which the same is asked."""
    if "beside" in key.metadata:
        assert set(key.metadata["beside"]) <= {other.name for other in fields(SamplingSettings)}
    elif key.metadata["blocks"] is not True and key.name != "structured":
        with pytest.raises(ConfigError, match=rf"'{key.name}' cannot work with .*: {key.metadata['blocks']}"):
            check_sampling(SamplingSettings(per_row=[key.name]))


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
