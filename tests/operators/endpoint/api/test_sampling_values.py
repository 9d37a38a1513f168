"""What cannot be sent is refused; what is sent has an effect."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from operators.endpoint.api.dialects import DIALECTS, LLAMA_CPP_PYTHON, NAMES
from operators.settings import DataSettings, SamplingSettings
from operators.settings.endpoint import EndpointSettings
from operators.settings.structured import StructuredSettings
from pipeline.api.errors import ConfigError
from tests.operators.endpoint.api.asked import SCHEMA, TOOLS, body, refusal

UNSENT: list[tuple[str, dict[str, Any], str]] = [
    ("openai", {"top_k": 40}, "sampling.top_k=40 cannot be sent: openai has no key for it; leave it out with"),
    ("openai", {"repetition_penalty": 1.1}, "sampling.repetition_penalty=1.1 cannot be sent"),
    ("openai", {"presence_penalty": 1.0, "penalty_last_n": 64}, "write sampling.penalty_last_n=null"),
    ("llama_cpp_python", {"presence_penalty": 1.0}, "looks back on 64 tokens; write sampling.penalty_last_n=64"),
    ("openai", {"stop": list("abcde")}, "openai takes 4 strings at most"),
    ("openai", {"logprobs": 21}, "openai gives 20 at most (chat)"),
    ("openai", {"logit_bias": {"a": 1.0}}, "openai takes token ids alone"),
    ("vllm", {"logit_bias": {1: 101.0}}, "vllm takes -100 (a ban, as -.inf) to 100"),
    ("vllm", {"bad_words": ["a", 3]}, "sampling.bad_words has 3 and cannot be sent: vllm takes strings alone"),
    ("vllm", {"xtc_probability": 0.5}, "sampling.xtc_probability=0.5 cannot be sent: vllm has no key"),
    ("vllm", {"temperature": 0.0, "xtc_probability": 0.5}, "sampling.xtc_probability=0.5"),
    ("sglang", {"bad_words": ["a"]}, "sampling.bad_words=['a'] cannot be sent"),
    ("sglang", {"thinking_budget": 1}, "sampling.thinking_budget=1 cannot be sent"),
    ("sglang", {"order": ["temperature", "top_p", "top_k"], "top_k": 4, "top_p": 0.5}, "sampling.order=["),
    ("llama_server", {"min_tokens": 3}, "sampling.min_tokens=3 cannot be sent: llama_server has no key"),
    ("llama_server", {"stop_token_ids": [3]}, "sampling.stop_token_ids=[3] cannot be sent"),
    ("llama_server", {"dry_multiplier": 1.0, "dry_sequence_breakers": []}, "llama_server takes one at least"),
    ("llama_cpp_python", {"ignore_eos": True}, "sampling.ignore_eos=true cannot be sent"),
    ("llama_cpp_python", {"logit_bias": {"a": 1.0, 3: 1.0}}, "takes token ids or texts, not both"),
    ("openai", {"per_row": ["min_p"]}, "sampling.per_row has 'min_p' and cannot be sent: openai has no key"),
    ("openai", {"structured": StructuredSettings(regex="a")}, "structured.regex cannot be sent: openai has no key for"),
    ("llama_server", {"structured": StructuredSettings(regex="a")}, "in model.api=chat vllm, sglang have one"),
    ("sglang", {"structured": StructuredSettings(grammar="start: /a/")}, "sglang takes GBNF"),
    ("vllm", {"structured": StructuredSettings(json_schema={}, whitespace="compact")}, "whitespace=compact cannot be"),
    ("vllm", {"structured": StructuredSettings(json_schema={}, after_reasoning=False)}, "after_reasoning=false cannot"),
    ("vllm", {"tools": "required"}, "sampling.tools=required needs tools"),
]
ACTING: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.5,
    "min_p": 0.5,
    "typical_p": 0.5,
    "top_n_sigma": 1.5,
    "dynatemp_range": 0.5,
    "dynatemp_exponent": {"dynatemp_range": 0.5, "dynatemp_exponent": 2.0},
    "repetition_penalty": 1.5,
    "presence_penalty": 1.5,
    "frequency_penalty": 1.5,
    "penalty_last_n": {"presence_penalty": 1.0, "penalty_last_n": 9},
    "dry_multiplier": 1.0,
    "dry_base": {"dry_multiplier": 1.0, "dry_base": 2.0},
    "dry_allowed_length": {"dry_multiplier": 1.0, "dry_allowed_length": 3},
    "dry_penalty_last_n": {"dry_multiplier": 1.0, "dry_penalty_last_n": 9},
    "dry_sequence_breakers": {"dry_multiplier": 1.0, "dry_sequence_breakers": ["."]},
    "xtc_probability": 0.5,
    "xtc_threshold": {"xtc_probability": 0.5, "xtc_threshold": 0.2},
    "mirostat": 2,
    "mirostat_tau": {"mirostat": 2, "mirostat_tau": 3.0},
    "mirostat_eta": {"mirostat": 2, "mirostat_eta": 0.2},
    "logit_bias": {"logit_bias": {1: 1.0}},
    "bad_words": ["a"],
    "order": {"top_k": 3, "top_p": 0.5, "order": ["top_p", "top_k", "temperature"]},
    "max_tokens": 3,
    "min_tokens": 3,
    "stop": ["a"],
    "stop_token_ids": [3],
    "keep_stop": True,
    "ignore_eos": True,
    "logprobs": 2,
    "tools": "required",
    "thinking_budget": 3,
    "structured": StructuredSettings(json_schema=SCHEMA),
}
"""A value of each key that has an effect, beside what it needs for that."""


@pytest.mark.parametrize(("dialect", "sampling", "message"), UNSENT, ids=lambda v: str(v)[:30])
def test_what_cannot_be_sent_is_refused_before_anything_runs(dialect, sampling, message):
    said = refusal(dialect, **sampling)
    assert said.startswith("node 'ask': ")
    assert message in said


@pytest.mark.parametrize(
    ("key", "word", "said"), [("dialect", "tgi", "auto, openai, vllm"), ("api", "responses", "chat")]
)
def test_an_unknown_dialect_or_api_is_refused(key, word, said):
    with pytest.raises(ConfigError, match=f"model.{key}='{word}' cannot work: it is one of {said}"):
        EndpointSettings(url="http://127.0.0.1:1/v1", **{key: word})


SETTINGS = {f.name for f in fields(SamplingSettings)}


@pytest.mark.parametrize("key", [name for name in (*DIALECTS, "structured") if name in SETTINGS])
def test_no_value_is_dropped_in_silence(key):
    """Each key, set to something that acts, changes the body or is refused, in each dialect."""
    assert key in ACTING, f"add a value of {key} that acts to ACTING"
    given = ACTING[key] if isinstance(ACTING[key], dict) else {key: ACTING[key]}
    before = {name: value for name, value in given.items() if name != key}
    row = {"tools": TOOLS} if key == "tools" else {}
    data = DataSettings(tools=TOOLS) if key == "tools" else None
    for dialect in NAMES:
        plain = {"penalty_last_n": 64} if dialect == LLAMA_CPP_PYTHON else {}
        refused = ""
        try:
            changed = body(dialect, row, data=data, **(plain | given))
        except ConfigError as error:
            refused = str(error)
        if refused:
            assert any(f"sampling.{name}" in refused for name in given)
        else:
            assert changed != body(dialect, row, data=data, **(plain | before))


def test_what_has_no_effect_is_not_looked_at():
    inert = {"xtc_threshold": 0.3, "mirostat_tau": 2.0, "dry_base": 3.0, "dynatemp_exponent": 2.0, "penalty_last_n": 9}
    for dialect in NAMES:
        assert body(dialect, **inert) == body(dialect)
    left_out = ["penalties", "temperature", "top_p", "min_p"]
    assert body("vllm", top_k=5, order=left_out)["top_k"] == -1
    assert body("vllm", repetition_penalty=1.5, order=["temperature"])["repetition_penalty"] == 1.0
    mirostat = body("llama_cpp_python", mirostat=2, repetition_penalty=1.5, top_k=4)
    assert (mirostat["mirostat_mode"], mirostat["mirostat_tau"], mirostat["repeat_penalty"]) == (2, 5.0, 1.0)
    assert mirostat["top_k"] == 0
