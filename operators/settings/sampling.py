"""The config group `sampling`: the drawing of tokens, and the values that can work, in a job and in a column."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

import pyarrow as pa

from operators.settings.checks import check
from operators.settings.structured import StructuredSettings
from pipeline.api.errors import did_you_mean
from pipeline.api.keys import Rule, at_least, default_of, in_data

STEP_ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature")
"""The steps in llama.cpp's default order."""
MOST_SAMPLES = 10_000
"""Most completions per prompt: a batch of rows is repeated that often in memory."""
_NOT_BUILT = "it is not built for blocks"
_NOT_ONE = f"{_NOT_BUILT}: confidences are taken at one temperature"
_NO_ORDER = "from left to right, and a block is not made in that order"
_BEHIND = "it looks back on the text before a token, which is not there yet when a block is made"


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


def _each(holds: Callable[[Any], bool], allowed: str) -> Rule:
    return allowed, lambda values: all(map(holds, values))


_WINDOW = at_least(0, "0 (off) or more; null looks back on the whole row")
_SHARE: Rule = ("above 0, up to 1 (1 is off)", lambda v: 0 < v <= 1)
_ADDED: Rule = ("-100 to 100; 0 is off", lambda v: -100 <= v <= 100)
_OFF_TO_100: Rule = ("0 (off) to 100", lambda v: 0 <= v <= 100)
_TO_100: Rule = ("above 0, up to 100", lambda v: 0 < v <= 100)
_TEXTS = _each(_is_text, "strings of at least one character")
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_PENALTY: Mapping[str, Any] = {"step": "penalties", "blocks": _BEHIND}
_DRY = ("dry_multiplier",)
_BIASES = "a mapping of token ids (numbers) or strings, each to a number from -inf to 1000"


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

    temperature: float = in_data(0.0, "0 (greedy) to 100", lambda v: 0 <= v <= 100, blocks=True, sent=True)
    top_k: int = in_data(40, *at_least(0, "0 (off) or more"), off=0, blocks=True)
    top_p: float = in_data(0.95, *_SHARE, off=1.0, blocks=True)
    min_p: float = in_data(0.05, "0 (off) up to, not including, 1", lambda v: 0 <= v < 1, off=0.0, blocks=True)
    typical_p: float = in_data(1.0, *_SHARE, off=1.0, blocks=True)
    top_n_sigma: float = in_data(0.0, "0 (off) to 1000", lambda v: 0 <= v <= 1000, off=0.0, blocks=True)
    dynatemp_range: float = in_data(0.0, *_OFF_TO_100, off=0.0, step="temperature", blocks=_NOT_ONE)
    dynatemp_exponent: float = in_data(1.0, *_TO_100, beside=("dynatemp_range",))
    repetition_penalty: float = in_data(1.0, "0.01 to 100; 1 is off", lambda v: 0.01 <= v <= 100, off=1.0, **_PENALTY)
    presence_penalty: float = in_data(0.0, *_ADDED, off=0.0, **_PENALTY)
    frequency_penalty: float = in_data(0.0, *_ADDED, off=0.0, **_PENALTY)
    penalty_last_n: int | None = in_data(64, *_WINDOW, beside=_PENALTIES)
    dry_multiplier: float = in_data(0.0, *_OFF_TO_100, off=0.0, step="dry", blocks=_BEHIND)
    dry_base: float = in_data(1.75, "1 to 100", lambda v: 1 <= v <= 100, beside=_DRY)
    dry_allowed_length: int = in_data(2, *at_least(0, "0 or more"), beside=_DRY)
    dry_penalty_last_n: int | None = in_data(64, *_WINDOW, beside=_DRY)
    dry_sequence_breakers: list[str] = in_data(["\n", ":", '"', "*"], *_TEXTS, beside=_DRY)
    xtc_probability: float = in_data(0.0, "0 (off) to 1", lambda v: 0 <= v <= 1, off=0.0, step="xtc", blocks=_NOT_BUILT)
    xtc_threshold: float = in_data(
        0.1, "above 0, up to 1; above 0.5 it has no effect", lambda v: 0 < v <= 1, beside=("xtc_probability",)
    )
    mirostat: int = in_data(0, "0 (off) or 2", lambda v: v in (0, 2), off=0, step=None, blocks=_BEHIND)
    mirostat_tau: float = in_data(5.0, *_TO_100, beside=("mirostat",))
    mirostat_eta: float = in_data(0.1, *_TO_100, beside=("mirostat",))
    # A mapping; declared as one it could not be set on the command line (OmegaConf 2.3).
    logit_bias: Any = in_data(None, _BIASES, _is_bias, blocks=_NOT_BUILT)
    bad_words: list[Any] = in_data(
        [], *_each(_is_bad_word, "strings, token ids, or lists of token ids, none empty"), blocks=_BEHIND
    )
    order: list[str] = in_data(
        list(STEP_ORDER),
        f"each at most once: {', '.join(STEP_ORDER)}; temperature may be left out where it is 1",
        lambda v: len(set(v)) == len(v) and set(v) <= set(STEP_ORDER),
        blocks=True,
    )
    max_tokens: int = in_data(256, *at_least(1, "1 or more"), blocks=True, sent=True)
    n: int = in_data(1, f"1 to {MOST_SAMPLES}", lambda v: 1 <= v <= MOST_SAMPLES, blocks=True)
    min_tokens: int = in_data(0, blocks="whether a block holds the end is known when all of it is")
    stop: list[str] = in_data([], *_TEXTS, ends=True, blocks=True)
    stop_token_ids: list[int] = in_data([], *_each(_is_id, "token ids, 0 or more"), ends=True, blocks=True)
    keep_stop: bool = in_data(False, blocks=True)
    ignore_eos: bool = in_data(False, ends=True, blocks=True)
    logprobs: int | None = in_data(
        None,
        "null (off), or 0 to 1000 likeliest tokens",
        lambda v: v is None or 0 <= v <= 1000,
        blocks="a token is chosen together with its neighbours, so it has no log-probability under the text before it",
    )
    tools: str | None = in_data(
        None, "auto, required, none, or the name of a tool", lambda v: v is None or _is_text(v), blocks=True
    )
    thinking_budget: int | None = in_data(
        None, *at_least(0, "null (any number), or 0 or more"), blocks=f"a closing tag is forced {_NO_ORDER}"
    )
    structured: StructuredSettings = in_data(
        StructuredSettings, row=False, blocks=f"a constraint is followed {_NO_ORDER}"
    )
    per_row: list[str] = in_data([], row=False, blocks=True)

    def __post_init__(self) -> None:
        for key, allowed in misfits(vars(self)).items():
            check(False, f"sampling.{key}", getattr(self, key), f"allowed: {allowed}")
        unknown = [k for k in self.per_row if k not in PER_ROW_KEYS]
        near = did_you_mean(unknown[0], PER_ROW_KEYS).removeprefix("; ") if unknown else ""
        check(not unknown, "sampling.per_row", unknown, near or f"a row can override {', '.join(PER_ROW_KEYS)}")


_HINTS = get_type_hints(SamplingSettings)
_WHOLE = {name: kind for name, kind in _HINTS.items() if kind in (int, int | None)}
_DEFAULTS = {key.name: default_of(key) for key in fields(SamplingSettings)}
_NUMBERS = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.null()),
)
_STRINGS = (pa.list_(pa.string()), pa.null())
_IDS = (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.null())
_COLUMNS: Mapping[Any, Sequence[pa.DataType] | None] = {
    str | None: (pa.string(), pa.null()),
    bool: (pa.bool_(), *_NUMBERS),
    list[str]: _STRINGS,
    list[int]: _IDS,
    list[Any]: (*_STRINGS, *_IDS, pa.list_(pa.list_(pa.int32())), pa.list_(pa.list_(pa.int64()))),
    Any: None,
}
"""The types of columns by the type of the key that they may override; None for any. Of all others they are numbers."""
KEYS: Mapping[str, Mapping[str, Any]] = {key.name: key.metadata for key in fields(SamplingSettings)}
"""What each key says of itself, see pipeline/api/keys.py."""
ENDS = tuple(name for name, facts in KEYS.items() if facts.get("ends"))
PER_ROW_KEYS = ("seed", *(name for name, facts in KEYS.items() if facts.get("row", True)))
"""Keys that a column may override."""


def is_unset(key: str, value: Any) -> bool:
    """Return True if `value` says no more than a key that is left out: it is the default, or empty."""
    return value == _DEFAULTS[key] or value in (None, [], {})


def misfits(values: Mapping[str, Any]) -> dict[str, str]:
    """Return, for each invalid sampling value, which values are allowed.

    Raises:
        TypeError: a value that should be a number is none.
    """
    if broken := {key: "a whole number" for key, kind in _WHOLE.items() if not _is_whole(values[key], kind)}:
        return broken
    ruled = {key: facts for key, facts in KEYS.items() if "holds" in facts}
    broken = {key: facts["allowed"] for key, facts in ruled.items() if not facts["holds"](values[key])}
    if not 0 <= values["min_tokens"] <= max(values["max_tokens"], 0):
        broken["min_tokens"] = f"0 (off) to max_tokens, which is {values['max_tokens']}"
    if "temperature" not in values["order"] and values["temperature"] != 1:
        broken["order"] = KEYS["order"]["allowed"]
    if values["structured"].kind is not None:
        for key in ENDS:
            if values[key]:
                broken[key] = "nothing of it beside sampling.structured, which ends the text itself"
    return broken


def _is_whole(value: object, kind: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, kind)


def per_row_types(key: str) -> Sequence[pa.DataType] | None:
    """Return the column types that may override `key`; None for any."""
    return _COLUMNS.get(_HINTS.get(key), _NUMBERS)


def plain_value(key: str, value: Any) -> Any:
    """Convert a column's value to its form in a job: whole numbers to int, `logit_bias` to a mapping."""
    if key in _WHOLE and isinstance(value, float) and value.is_integer():
        return int(value)
    if _HINTS.get(key) is bool:
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
