"""What each key of the settings says of itself, and that runs of before go on where a version has a key more."""

from __future__ import annotations

from dataclasses import fields
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


MODEL: dict[str, Any] = {
    **{"path": "a.gguf", "repo": "o/m", "file": "a.gguf", "revision": "main", "chat_template": "a.jinja"},
    **{"reasoning_tags": [], "tool_format": "hermes", "date": "2026-01-31", "weights": "bf16", "gpu_layers": 1},
    **{"probe": False, "options": {"a": 1}},
    **{"loader": "a:b", "system": "Be brief.", "template_kwargs": {"a": 1}, "kernels": "llama.cpp"},
    **{"special_tokens_in_text": "parse"},
}
"""Another value for each key of a model."""


@pytest.mark.parametrize("key", fields(ModelSettings), ids=lambda key: key.name)
def test_each_key_of_a_model_says_whether_a_server_takes_it_and_whether_it_changes_what_is_loaded(key):
    other = {key.name: MODEL[key.name]}
    if key.metadata["local"]:
        with pytest.raises(ConfigError, match=rf"model\.{key.name}=.* is of a model in this process"):
            EndpointSettings(url="http://server/v1", **other)
    else:
        assert getattr(EndpointSettings(url="http://server/v1", **other), key.name) == MODEL[key.name]
    assert (model_key(ModelSettings(**other)) == model_key(ModelSettings())) == key.metadata.get("prompts", False)


@pytest.mark.parametrize("key", fields(SamplingSettings), ids=lambda key: key.name)
def test_each_key_of_sampling_says_whether_blocks_can_have_it(key):
    """Or beside which others it has an effect, of which the same is asked."""
    if "beside" in key.metadata:
        assert set(key.metadata["beside"]) <= {other.name for other in fields(SamplingSettings)}
    elif key.metadata["blocks"] is not True and key.name != "structured":
        with pytest.raises(ConfigError, match=rf"'{key.name}' cannot work with .*: {key.metadata['blocks']}"):
            check_sampling(SamplingSettings(per_row=[key.name]))
