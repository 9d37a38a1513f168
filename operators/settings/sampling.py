"""The config group `sampling`: the drawing of tokens, and the values that can work, in a job and in a column."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

import pyarrow as pa

from operators.settings.checks import check
from operators.settings.structured import StructuredSettings
from pipeline.api.errors import did_you_mean

STEP_ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature")
"""The steps in llama.cpp's default order."""
MOST_SAMPLES = 10_000
"""Most completions per prompt: a batch of rows is repeated that often in memory."""
_WINDOW = "0 (off) or more; null looks back on the whole row"
_TEXTS_ALLOWED = "strings of at least one character"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_bad_word(value: object) -> bool:
    return _is_text(value) or _is_id(value) or (isinstance(value, Sequence) and bool(value) and all(map(_is_id, value)))


def _is_bias(value: object) -> bool:
    return value is None or (
        isinstance(value, Mapping)
        and all(
            (_is_text(k) or _is_id(k)) and isinstance(b, int | float) and not math.isnan(b) and b <= 1000
            for k, b in value.items()
        )
    )


def _ruled(default: Any, allowed: str, holds: Callable[[Any], bool]) -> Any:
    """Return a field with a check of its value, and the allowed values in words. A list as `default` is copied."""
    rule = {"allowed": allowed, "holds": holds}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=rule)
    return field(default=default, metadata=rule)


@dataclass
class SamplingSettings:
    """The drawing of tokens (`sampling`). docs/sampling.md has the range and the meaning of each key at length.

    Args:
        temperature: 0 takes the most likely token (greedy).
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probabilities reach top_p; 1 keeps all.
        min_p: keep tokens with at least min_p times the probability of the most likely one; 0 keeps all.
        typical_p: keep the tokens whose surprise is nearest the entropy, up to this probability; 1 keeps all.
        top_n_sigma: keep tokens with a logit at most so many standard deviations below the largest; 0 keeps all.
        dynatemp_range, dynatemp_exponent: the temperature varies with the entropy, by as much as the range; 0: it does
            not.
        repetition_penalty, presence_penalty, frequency_penalty: for tokens among the last penalty_last_n of prompt
            and completion; 1, 0 and 0 are off.
        penalty_last_n: null looks back on the whole row.
        dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers: the DRY penalty for
            repeating a sequence; a multiplier of 0 is off.
        xtc_probability, xtc_threshold: how often to drop all tokens above the threshold but one; 0 is off.
        mirostat, mirostat_tau, mirostat_eta: 2 keeps the surprise of the tokens near tau; 0 is off.
        logit_bias: token id (a number) or text (a string) to what is added to the logit of it, or of all its tokens.
        bad_words: strings, token ids or lists of token ids that never come.
        order: the steps in the order in which they act; one that is left out does not act.
        max_tokens: completion tokens at most.
        n: completions of each prompt; they differ in their seed.
        min_tokens: the completion does not end by a token before it has so many.
        stop: strings that end a completion.
        stop_token_ids: tokens that end a completion, besides the model's own end-of-generation tokens.
        keep_stop: whether the string or token of `stop` and `stop_token_ids` becomes part of the completion.
        ignore_eos: do not stop at the model's end-of-generation tokens.
        logprobs: record the log-probability of each token, and of so many of the most likely ones; null records none.
        tools: what to do with the tools of a job or row: auto (the model may call them; the default where there are
            any), required (it calls one), the name of a tool (it calls that), none (calls are not looked for).
        thinking_budget: tokens of reasoning at most; then the closing tag is forced. null: any number.
        structured: what the text has to be: JSON of a schema, a match of a regex, a choice, a grammar's text.
        per_row: names of columns that override the setting of the same name for their row (null: no override).
    """

    temperature: float = _ruled(0.0, "0 (greedy) to 100", lambda v: 0 <= v <= 100)
    top_k: int = _ruled(40, "0 (off) or more", lambda v: v >= 0)
    top_p: float = _ruled(0.95, "above 0, up to 1 (1 is off)", lambda v: 0 < v <= 1)
    min_p: float = _ruled(0.05, "0 (off) up to, not including, 1", lambda v: 0 <= v < 1)
    typical_p: float = _ruled(1.0, "above 0, up to 1 (1 is off)", lambda v: 0 < v <= 1)
    top_n_sigma: float = _ruled(0.0, "0 (off) to 1000", lambda v: 0 <= v <= 1000)
    dynatemp_range: float = _ruled(0.0, "0 (off) to 100", lambda v: 0 <= v <= 100)
    dynatemp_exponent: float = _ruled(1.0, "above 0, up to 100", lambda v: 0 < v <= 100)
    repetition_penalty: float = _ruled(1.0, "0.01 to 100; 1 is off", lambda v: 0.01 <= v <= 100)
    presence_penalty: float = _ruled(0.0, "-100 to 100; 0 is off", lambda v: -100 <= v <= 100)
    frequency_penalty: float = _ruled(0.0, "-100 to 100; 0 is off", lambda v: -100 <= v <= 100)
    penalty_last_n: int | None = _ruled(64, _WINDOW, lambda v: v is None or v >= 0)
    dry_multiplier: float = _ruled(0.0, "0 (off) to 100", lambda v: 0 <= v <= 100)
    dry_base: float = _ruled(1.75, "1 to 100", lambda v: 1 <= v <= 100)
    dry_allowed_length: int = _ruled(2, "0 or more", lambda v: v >= 0)
    dry_penalty_last_n: int | None = _ruled(64, _WINDOW, lambda v: v is None or v >= 0)
    dry_sequence_breakers: list[str] = _ruled(["\n", ":", '"', "*"], _TEXTS_ALLOWED, lambda v: all(map(_is_text, v)))
    xtc_probability: float = _ruled(0.0, "0 (off) to 1", lambda v: 0 <= v <= 1)
    xtc_threshold: float = _ruled(0.1, "above 0, up to 1; above 0.5 it has no effect", lambda v: 0 < v <= 1)
    mirostat: int = _ruled(0, "0 (off) or 2", lambda v: v in (0, 2))
    mirostat_tau: float = _ruled(5.0, "above 0, up to 100", lambda v: 0 < v <= 100)
    mirostat_eta: float = _ruled(0.1, "above 0, up to 100", lambda v: 0 < v <= 100)
    # A mapping; declared as one it could not be set on the command line (OmegaConf 2.3).
    logit_bias: Any = _ruled(
        None, "a mapping of token ids (numbers) or strings, each to a number from -inf to 1000", _is_bias
    )
    bad_words: list[Any] = _ruled(
        [], "strings, token ids, or lists of token ids, none empty", lambda v: all(map(_is_bad_word, v))
    )
    order: list[str] = _ruled(
        list(STEP_ORDER),
        f"each at most once: {', '.join(STEP_ORDER)}; temperature may be left out where it is 1",
        lambda v: len(set(v)) == len(v) and set(v) <= set(STEP_ORDER),
    )
    max_tokens: int = _ruled(256, "1 or more", lambda v: v >= 1)
    n: int = _ruled(1, f"1 to {MOST_SAMPLES}", lambda v: 1 <= v <= MOST_SAMPLES)
    min_tokens: int = 0
    stop: list[str] = _ruled([], _TEXTS_ALLOWED, lambda v: all(map(_is_text, v)))
    stop_token_ids: list[int] = _ruled([], "token ids, 0 or more", lambda v: all(map(_is_id, v)))
    keep_stop: bool = False
    ignore_eos: bool = False
    logprobs: int | None = _ruled(
        None, "null (off), or 0 to 1000 likeliest tokens", lambda v: v is None or 0 <= v <= 1000
    )
    tools: str | None = _ruled(None, "auto, required, none, or the name of a tool", lambda v: v is None or _is_text(v))
    thinking_budget: int | None = _ruled(None, "null (any number), or 0 or more", lambda v: v is None or v >= 0)
    structured: StructuredSettings = field(default_factory=StructuredSettings)
    per_row: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for key, allowed in misfits(vars(self)).items():
            check(False, f"sampling.{key}", getattr(self, key), f"allowed: {allowed}")
        unknown = [k for k in self.per_row if k not in PER_ROW_KEYS]
        near = did_you_mean(unknown[0], PER_ROW_KEYS).removeprefix("; ") if unknown else ""
        check(not unknown, "sampling.per_row", unknown, near or f"a row can override {', '.join(PER_ROW_KEYS)}")


_WHOLE = {name: kind for name, kind in get_type_hints(SamplingSettings).items() if kind in (int, int | None)}
_SWITCHES = ("ignore_eos", "keep_stop")
_NUMBERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.null())
_TEXTS = (pa.list_(pa.string()), pa.null())
_IDS = (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.null())
_OTHERS: Mapping[str, Sequence[pa.DataType] | None] = {
    "tools": (pa.string(), pa.null()),
    "stop": _TEXTS,
    "order": _TEXTS,
    "dry_sequence_breakers": _TEXTS,
    "stop_token_ids": _IDS,
    "bad_words": (*_TEXTS, *_IDS, pa.list_(pa.list_(pa.int32())), pa.list_(pa.list_(pa.int64()))),
    "logit_bias": None,
}
PER_ROW_KEYS = ("seed", *(f.name for f in fields(SamplingSettings) if f.name not in ("structured", "per_row")))
"""Keys that a column may override."""


def misfits(values: Mapping[str, Any]) -> dict[str, str]:
    """Return, for each invalid sampling value, which values are allowed.

    Raises:
        TypeError: a value that should be a number is none.
    """
    if broken := {key: "a whole number" for key, kind in _WHOLE.items() if not _is_whole(values[key], kind)}:
        return broken
    ruled = [f for f in fields(SamplingSettings) if "holds" in f.metadata]
    broken = {f.name: f.metadata["allowed"] for f in ruled if not f.metadata["holds"](values[f.name])}
    if not 0 <= values["min_tokens"] <= max(values["max_tokens"], 0):
        broken["min_tokens"] = f"0 (off) to max_tokens, which is {values['max_tokens']}"
    if "temperature" not in values["order"] and values["temperature"] != 1:
        broken["order"] = next(f.metadata["allowed"] for f in ruled if f.name == "order")
    if values["structured"].kind is not None:
        for key in ("stop", "stop_token_ids", "ignore_eos"):
            if values[key]:
                broken[key] = "nothing of it beside sampling.structured, which ends the text itself"
    return broken


def _is_whole(value: object, kind: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, kind)


def per_row_types(key: str) -> Sequence[pa.DataType] | None:
    """Return the column types that may override `key`; None for any."""
    return _OTHERS.get(key, _NUMBERS)


def plain_value(key: str, value: Any) -> Any:
    """Convert a column's value to its form in a job: whole numbers to int, `logit_bias` to a mapping."""
    if key in _WHOLE and isinstance(value, float) and value.is_integer():
        return int(value)
    if key in _SWITCHES:
        return bool(value)
    return _bias(value) if key == "logit_bias" else value


def _bias(value: Any) -> Any:
    """Read a map, a struct, or a list of structs with `token` or `text`, and `bias`."""
    if isinstance(value, Mapping):
        return {k: v for k, v in value.items() if v is not None}
    if all(isinstance(entry, Mapping) for entry in value):
        named = ((e.get("token"), e.get("text"), e.get("bias")) for e in value)
        return {text if token is None else token: bias for token, text, bias in named}
    return dict(value)
