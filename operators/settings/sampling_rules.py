"""Which sampling values can work, for the settings of a job and for the columns of a row alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

STEP_ORDER = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typical_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)
"""The steps in llama.cpp's default order."""

MOST_SAMPLES = 10_000
"""Completions of a prompt: a batch of rows is made so many times as long at once."""

Rule = tuple[bool, str]
"""Whether a value can work, and in words which can."""

_NUMBERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.null())
_TEXTS = (pa.list_(pa.string()), pa.null())
_IDS = (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.null())
_LISTS: Mapping[str, Sequence[pa.DataType] | None] = {
    "stop": _TEXTS,
    "order": _TEXTS,
    "dry_sequence_breakers": _TEXTS,
    "stop_token_ids": _IDS,
    "bad_words": (*_TEXTS, *_IDS, pa.list_(pa.list_(pa.int32())), pa.list_(pa.list_(pa.int64()))),
    "logit_bias": None,
}
_WHOLE = (
    "max_tokens",
    "n",
    "min_tokens",
    "top_k",
    "penalty_last_n",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "mirostat",
    "logprobs",
)
_MORE_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "xtc_probability",
    "xtc_threshold",
    "mirostat_tau",
    "mirostat_eta",
    "dynatemp_range",
    "dynatemp_exponent",
)
_SWITCHES = ("ignore_eos", "keep_stop")
PER_ROW_KEYS = ("seed", *_WHOLE, *_MORE_NUMBERS, *_SWITCHES, *_LISTS)
"""What a column can override."""


def per_row_types(key: str) -> Sequence[pa.DataType] | None:
    """The types that a column may have that overrides `key`; None for any."""
    return _LISTS.get(key, _NUMBERS)


def plain_value(key: str, value: Any) -> Any:
    """A value of a column in the form in which a job would have it: whole numbers as int, `logit_bias` as a mapping."""
    if key in _WHOLE and isinstance(value, float) and value.is_integer():
        return int(value)
    if key in _SWITCHES:
        return bool(value)
    return _bias(value) if key == "logit_bias" else value


def _bias(value: Any) -> Any:
    """From a map, a struct, or a list of structs with `token` or `text`, and `bias`."""
    if isinstance(value, Mapping):
        return {k: v for k, v in value.items() if v is not None}
    if all(isinstance(entry, Mapping) for entry in value):
        named = ((e.get("token"), e.get("text"), e.get("bias")) for e in value)
        return {text if token is None else token: bias for token, text, bias in named}
    return dict(value)


def sampling_rules(values: Mapping[str, Any]) -> dict[str, Rule]:
    """For each sampling key whether its value can work, and what can.

    Raises:
        TypeError: a value that should be a number is none.
    """
    whole = {key: (_is_whole(values[key], key), "a whole number") for key in _WHOLE}
    if broken := {key: rule for key, rule in whole.items() if not rule[0]}:
        return broken
    return _numbers(values) | _penalties(values) | _lists(values) | _beside_structured(values)


def _numbers(values: Mapping[str, Any]) -> dict[str, Rule]:
    logprobs, least, most = values["logprobs"], values["min_tokens"], values["max_tokens"]
    return {
        "temperature": (0 <= values["temperature"] <= 100, "0 (greedy) to 100"),
        "dynatemp_range": (0 <= values["dynatemp_range"] <= 100, "0 (off) to 100"),
        "dynatemp_exponent": (0 < values["dynatemp_exponent"] <= 100, "above 0, up to 100"),
        "top_k": (values["top_k"] >= 0, "0 (off) or more"),
        "n": (1 <= values["n"] <= MOST_SAMPLES, f"1 to {MOST_SAMPLES}"),
        "top_p": (0 < values["top_p"] <= 1, "above 0, up to 1 (1 is off)"),
        "min_p": (0 <= values["min_p"] < 1, "0 (off) up to, not including, 1"),
        "typical_p": (0 < values["typical_p"] <= 1, "above 0, up to 1 (1 is off)"),
        "top_n_sigma": (0 <= values["top_n_sigma"] <= 1000, "0 (off) to 1000"),
        "xtc_probability": (0 <= values["xtc_probability"] <= 1, "0 (off) to 1"),
        "xtc_threshold": (0 < values["xtc_threshold"] <= 1, "above 0, up to 1; above 0.5 it has no effect"),
        "mirostat": (values["mirostat"] in (0, 2), "0 (off) or 2"),
        "mirostat_tau": (0 < values["mirostat_tau"] <= 100, "above 0, up to 100"),
        "mirostat_eta": (0 < values["mirostat_eta"] <= 100, "above 0, up to 100"),
        "max_tokens": (most >= 1, "1 or more"),
        "min_tokens": (0 <= least <= max(most, 0), f"0 (off) to max_tokens, which is {most}"),
        "logprobs": (logprobs is None or 0 <= logprobs <= 1000, "null (off), or 0 to 1000 likeliest tokens"),
    }


def _penalties(values: Mapping[str, Any]) -> dict[str, Rule]:
    window = "0 (off) or more; null looks back on the whole row"
    return {
        "repetition_penalty": (0.01 <= values["repetition_penalty"] <= 100, "0.01 to 100; 1 is off"),
        "presence_penalty": (-100 <= values["presence_penalty"] <= 100, "-100 to 100; 0 is off"),
        "frequency_penalty": (-100 <= values["frequency_penalty"] <= 100, "-100 to 100; 0 is off"),
        "penalty_last_n": (values["penalty_last_n"] is None or values["penalty_last_n"] >= 0, window),
        "dry_multiplier": (0 <= values["dry_multiplier"] <= 100, "0 (off) to 100"),
        "dry_base": (1 <= values["dry_base"] <= 100, "1 to 100"),
        "dry_allowed_length": (values["dry_allowed_length"] >= 0, "0 or more"),
        "dry_penalty_last_n": (values["dry_penalty_last_n"] is None or values["dry_penalty_last_n"] >= 0, window),
    }


def _lists(values: Mapping[str, Any]) -> dict[str, Rule]:
    order = values["order"]
    return {
        "stop": (all(map(_is_text, values["stop"])), "strings of at least one character"),
        "stop_token_ids": (all(map(_is_id, values["stop_token_ids"])), "token ids, 0 or more"),
        "dry_sequence_breakers": (
            all(map(_is_text, values["dry_sequence_breakers"])),
            "strings of at least one character",
        ),
        "bad_words": (
            all(_is_text(w) or _is_id(w) or _are_ids(w) for w in values["bad_words"]),
            "strings, token ids, or lists of token ids, none empty",
        ),
        "logit_bias": (
            _are_biases(values["logit_bias"]),
            "a mapping of token ids (numbers) or strings, each to a number from -inf to 1000",
        ),
        "order": (
            len(set(order)) == len(order)
            and set(order) <= set(STEP_ORDER)
            and ("temperature" in order or values["temperature"] == 1),
            f"each at most once: {', '.join(STEP_ORDER)}; temperature may be left out where it is 1",
        ),
    }


def _beside_structured(values: Mapping[str, Any]) -> dict[str, Rule]:
    """A text that has to be something in particular is not cut elsewhere."""
    if values["structured"].kind is None:
        return {}
    allowed = "nothing of it beside sampling.structured, which ends the text itself"
    return {key: (False, allowed) for key in ("stop", "stop_token_ids", "ignore_eos") if values[key]}


def _is_whole(value: object, key: str) -> bool:
    may_be_null = key in ("logprobs", "penalty_last_n", "dry_penalty_last_n")
    return (isinstance(value, int) and not isinstance(value, bool)) or (value is None and may_be_null)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_ids(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and bool(value) and all(map(_is_id, value))


def _are_biases(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, Mapping) and all(
        (_is_text(k) or _is_id(k)) and isinstance(b, int | float) and not math.isnan(b) and b <= 1000
        for k, b in value.items()
    )
