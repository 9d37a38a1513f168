"""The table of dialects, whole bodies of each, and how a server tells its dialect."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from operators.endpoint.api.dialects import CHAT, COMPLETIONS, DIALECTS, NAMES, NODES, OPENAI, Key, dialect_of
from operators.settings import DataSettings, SamplingSettings
from operators.settings.endpoint import EndpointSettings
from operators.settings.model import ModelSettings
from operators.settings.structured import StructuredSettings
from pipeline import PROJECT
from tests.operators.endpoint.api.asked import HI, PLAIN, SCHEMA, TOOLS, body, completion

TAKEN = {
    CHAT: chat_create_params.CompletionCreateParamsBase.__annotations__,
    COMPLETIONS: completion_create_params.CompletionCreateParamsBase.__annotations__,
}
"""The keys of OpenAI's own client."""


PAGE = (PROJECT / "docs/endpoints.md").read_text(encoding="utf-8")


def test_no_field_is_forgotten():
    """The page says what becomes of a setting that is no key of a body."""
    sampling = {f.name for f in fields(SamplingSettings)} - {"structured"}
    structured = {f"structured.{f.name}" for f in fields(StructuredSettings)}
    others = {"seed", "template_kwargs", "continue_final_message"}
    notes = re.findall(r"^\| `([\w.]+)` \|", PAGE.partition("| setting | what becomes of it |")[2], re.M)
    assert sorted([*DIALECTS, *notes]) == sorted(sampling | structured | others)
    assert all(tuple(row) == NAMES for row in DIALECTS.values())


def test_a_plain_body_of_each_dialect():
    common = {"model": "m", "messages": HI, "temperature": 1.0, "seed": 5}
    off = {"top_p": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "max_tokens": 256}
    assert body("openai") == common | {"max_completion_tokens": 256}
    assert body("vllm") == common | off | {"top_k": -1, "repetition_penalty": 1.0}
    assert body("sglang") == body("vllm")
    assert body("llama_cpp_python") == common | off | {"top_k": 0, "repeat_penalty": 1.0, "mirostat_mode": 0}
    more = {"typical_p": 1.0, "top_n_sigma": -1.0, "dynatemp_range": 0.0, "dry_multiplier": 0.0, "xtc_probability": 0.0}
    assert body("llama_server") == common | off | more | {"top_k": 0, "repeat_penalty": 1.0, "mirostat": 0}


def test_a_greedy_body_has_no_cuts_and_no_seed():
    greedy = {"temperature": 0.0, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "penalty_last_n": 64, "max_tokens": 9}
    common = {"model": "m", "messages": HI, "temperature": 0.0}
    penalties = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "max_tokens": 9}
    assert body("openai", **greedy) == common | {"max_completion_tokens": 9}
    assert body("vllm", **greedy) == common | penalties | {"repetition_penalty": 1.0}
    assert body("sglang", **greedy) == common | penalties | {"repetition_penalty": 1.0}
    assert body("llama_cpp_python", **greedy) == common | penalties | {"repeat_penalty": 1.0}
    assert body("llama_server", **greedy) == common | penalties | {"repeat_penalty": 1.0, "dry_multiplier": 0.0}


def test_a_full_body_of_llama_server():
    given: dict[str, Any] = {
        "temperature": 0.7,
        "top_k": 30,
        "top_p": 0.9,
        "min_p": 0.02,
        "typical_p": 0.99,
        "top_n_sigma": 2.0,
        "dynatemp_range": 0.2,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "dry_multiplier": 0.8,
        "dry_sequence_breakers": ["\n"],
        "dry_penalty_last_n": None,
        "xtc_probability": 0.5,
        "order": ["penalties", "dry", "temperature", "typical_p", "top_n_sigma", "top_k", "top_p", "min_p", "xtc"],
        "logit_bias": {7: 1.5, "15": float("-inf")},
        "stop": ["END"],
        "ignore_eos": True,
        "logprobs": 0,
        "thinking_budget": 100,
    }
    names = {"repetition_penalty": "repeat_penalty", "order": "samplers", "thinking_budget": "thinking_budget_tokens"}
    usual = {"dynatemp_exponent": 1.0, "dry_base": 1.75, "dry_allowed_length": 2, "xtc_threshold": 0.1, "mirostat": 0}
    written = {
        "repeat_last_n": -1,
        "dry_penalty_last_n": -1,
        "samplers": ["penalties", "dry", "temperature", "typ_p", "top_n_sigma", "top_k", "top_p", "min_p", "xtc"],
        "logit_bias": [[7, 1.5], ["15", False]],
        "logprobs": True,
        "top_logprobs": 1,
    }
    common = {"model": "m", "messages": HI, "max_tokens": 256, "seed": 5}
    same = {names.get(name, name): value for name, value in given.items()}
    assert body("llama_server", **given) == common | usual | same | written


def test_a_full_body_of_vllm():
    given: dict[str, Any] = {
        "temperature": 0.7,
        "top_p": 0.9,
        "presence_penalty": 0.5,
        "logit_bias": {7: float("-inf"), 8: 2.0},
        "bad_words": ["no"],
        "min_tokens": 2,
        "stop_token_ids": [3],
        "keep_stop": True,
        "logprobs": 2,
        "thinking_budget": 64,
    }
    made = body("vllm", **given)
    wanted = given | {
        "logit_bias": {"7": -100.0, "8": 2.0},
        "include_stop_str_in_output": True,
        "logprobs": True,
        "top_logprobs": 2,
        "thinking_token_budget": 64,
    }
    for key in ("keep_stop", "thinking_budget"):
        wanted.pop(key)
    assert made == body("vllm") | wanted


def test_the_keys_of_openai_are_those_of_its_own_client():
    everything: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "presence_penalty": 1.0, "frequency_penalty": 1.0}
    everything |= {"logit_bias": {1: 1.0}, "stop": ["x"], "logprobs": 1}
    tools = {"tools": TOOLS}
    made = body("openai", tools, data=DataSettings(tools=TOOLS), **everything)
    structured = body("openai", structured=StructuredSettings(json_schema=SCHEMA))
    assert made.keys() | structured.keys() <= TAKEN[CHAT].keys()
    assert completion("openai", **everything).keys() <= TAKEN[COMPLETIONS].keys()
    named = {(api, key) for row in DIALECTS.values() for api in TAKEN if (key := row[OPENAI].of(api)) is not None}
    assert {(api, key) for api, key in named if key not in TAKEN[api]} == set()


def test_the_preset_is_what_these_tests_take_for_plain():
    text = (Path(__file__).parents[4] / "conf/sampling/plain.yaml").read_text(encoding="utf-8")
    assert {key: value for key, value in yaml.safe_load(text).items() if key != "defaults"} == PLAIN


@pytest.mark.parametrize(
    ("card", "dialect"),
    [
        ({"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]}, "vllm"),
        ({"object": "list", "data": [{"id": "m", "owned_by": "sglang"}]}, "sglang"),
        ({"models": [], "object": "list", "data": [{"id": "m", "owned_by": "llamacpp", "meta": None}]}, "llama_server"),
        ({"object": "list", "data": [{"id": "m", "owned_by": "me", "permissions": []}]}, "llama_cpp_python"),
        ({"data": [{"owned_by": "openai"}, {"owned_by": "system"}, {"owned_by": "acme"}]}, "openai"),
        ({"id": "m", "owned_by": "vllm"}, "vllm"),
        ({"data": [{"owned_by": "vllm"}, {"owned_by": "sglang"}]}, None),
        ({"data": [{"owned_by": ["vllm"]}, None, 3]}, None),
        ({"data": []}, None),
        ({}, None),
        (None, None),
        ([1], None),
    ],
)
def test_a_server_tells_its_dialect(card, dialect):
    assert dialect_of(card) == dialect


def cell(key: Key) -> str:
    both = [f"`{name}` ({api})" for api in TAKEN if (name := key.of(api)) is not None]
    return f"`{key.chat}`" if key.chat is not None and key.chat == key.completions else ", ".join(both)


def test_the_page_has_the_table():
    lines = [["setting", *NAMES], *([f"`{name}`", *map(cell, row.values())] for name, row in DIALECTS.items())]
    lines += [[name, *(f"`{path}`" if path else "" for path in paths.values())] for name, paths in NODES.items()]
    assert [line for line in lines if f"\n| {' | '.join(line)} |\n" not in PAGE] == []
    own = {f.name for f in fields(EndpointSettings)} - {f.name for f in fields(ModelSettings)}
    assert [name for name in own if f"`{name}`" not in PAGE] == []
