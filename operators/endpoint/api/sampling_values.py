"""Sampling values of a job or row as keys of a body, in the words of a dialect.

A value that has no effect (a cut at temperature 0, the look-back of a penalty that is off) is not looked at. A step
that is off is sent where the server has the key, since servers have defaults of their own. OpenAI's API documents that
its defaults are off, and its reasoning models refuse the keys, so they are left out there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from operators.endpoint.api.dialects import (
    CHAT,
    DIALECTS,
    LLAMA_CPP_PYTHON,
    LLAMA_SERVER,
    OPENAI,
    SGLANG,
    VLLM,
)
from operators.settings.sampling import KEYS, STEP_ORDER, is_unset

OFF: Mapping[str, float] = {key: facts["off"] for key, facts in KEYS.items() if "off" in facts}
"""Values at which a step does nothing."""
_STEPS: Mapping[str, str | None] = {key: KEYS[key].get("step", key) for key in OFF}
"""By key that switches a step on the step of `order`; Mirostat is none of them."""
_CUTS = [key for key, step in _STEPS.items() if step not in ("penalties", "dry")]
"""Keys without effect at temperature 0, as long as xtc_probability is off."""
_BESIDE: Mapping[str, Sequence[str]] = {key: facts["beside"] for key, facts in KEYS.items() if "beside" in facts}
_SENT = {key for key, facts in KEYS.items() if key in OFF or facts.get("sent")}
"""Keys that are sent though they are not given, since servers have defaults of their own."""
_OFF_THERE: Mapping[tuple[str, str], float] = {
    (VLLM, "top_k"): -1,
    (SGLANG, "top_k"): -1,
    (LLAMA_SERVER, "top_n_sigma"): -1.0,
}
"""The same where a server has another number for it. In vLLM -1 is off in old and new versions, 0 in new ones."""
_LAST_N: Mapping[str, int | None] = {OPENAI: None, VLLM: None, SGLANG: None, LLAMA_CPP_PYTHON: 64}
"""How far the penalties of servers look back that have no key for it; None: on the whole row. Of llama-cpp-python it is
the default of last_n_tokens_size."""
_BEHIND_TEMPERATURE = ("penalties", "dry", "temperature", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc")
_ORDERS: Mapping[str, Sequence[Sequence[str]]] = {LLAMA_CPP_PYTHON: (STEP_ORDER,)}
"""Orders that stand for the own one of a server that has no key for it."""
_SAMPLERS: Mapping[str, str] = {"typical_p": "typ_p"}
"""Steps that have another name in llama-server."""
_WORDS: Mapping[bool | None, str] = {None: "null", True: "true", False: "false"}
MOST_STOPS = 4
MOST_BIAS = 100.0
MOST_LOGPROBS = {CHAT: 20, "completions": 5}
"""Limits of OpenAI's API. vLLM cuts a larger bias down without a word."""
REMEDY = "leave it out with sampling=plain, or name it in model.extra_body"


class Unsent(Exception):
    """A setting cannot be sent. The message says which, to whom, and what to do."""


def is_greedy(values: Mapping[str, Any]) -> bool:
    """Return True if the likeliest token is taken, whatever the seed."""
    return bool(values["temperature"] == 0 and values["xtc_probability"] == 0)


def sampling_body(values: Mapping[str, Any], dialect: str, api: str, job_keys: Collection[str] = ()) -> dict[str, Any]:
    """Return the keys of a body for checked sampling values, which are named as in SamplingSettings.

    Args:
        job_keys: settings to leave alone, since `model.extra_body` names them.

    Raises:
        Unsent: a value that has an effect cannot be sent.
    """
    acting = _acting(values)
    body: dict[str, Any] = {}
    for name in DIALECTS:
        if name not in acting or name in job_keys:
            continue
        value, key = acting[name], DIALECTS[name][dialect].of(api)
        is_off = name in OFF and value == OFF[name]
        if key is not None and not (is_off and dialect == OPENAI):
            body |= _written(name, _OFF_THERE.get((dialect, name), value) if is_off else value, key, dialect, api)
        elif key is None and not is_off and not _is_own(name, acting, dialect):
            raise Unsent(_no_key(name, value, dialect, api))
    return body


def _acting(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that have an effect, and those that are off."""
    acting = dict(values)
    acting["order"] = list(STEP_ORDER if acting["mirostat"] else acting["order"])
    for key, step in _STEPS.items():  # Mirostat takes the place of all steps
        if step is not None and (acting["mirostat"] or step not in acting["order"]):
            acting[key] = OFF[key]
    if is_greedy(values):
        acting = {name: value for name, value in acting.items() if name not in _CUTS}
    beside = {name for name, keys in _BESIDE.items() if all(acting.get(key, OFF[key]) == OFF[key] for key in keys)}
    silent = {name for name in acting.keys() - _BESIDE.keys() - _SENT if is_unset(name, acting[name])}
    return {name: value for name, value in acting.items() if name not in {"tools", *beside, *silent}}


def _is_own(name: str, acting: Mapping[str, Any], dialect: str) -> bool:
    """Return True if a value without a key is what the server does anyway."""
    if name == "penalty_last_n":
        return bool(acting[name] == _LAST_N.get(dialect))
    if name != "order":
        return False
    on = {"temperature", *(step for key, step in _STEPS.items() if acting.get(key, OFF[key]) != OFF[key])}
    steps = [step for step in acting[name] if step in on]
    orders = _ORDERS.get(dialect, (STEP_ORDER, _BEHIND_TEMPERATURE))
    return any(steps == [step for step in order if step in steps] for order in orders)


def _no_key(name: str, value: Any, dialect: str, api: str) -> str:
    where, remedy = f"{dialect} has no key for it", REMEDY
    if DIALECTS[name][dialect].chat is not None:
        where = f"{dialect} has a key for it in model.api=chat alone, not in {api}"
    if name == "penalty_last_n":
        last_n = _LAST_N[dialect]
        where += ", and looks back on " + ("the whole row" if last_n is None else f"{last_n} tokens")
        remedy = f"write sampling.penalty_last_n={'null' if last_n is None else last_n}"
    shown = _WORDS[value] if value is None or isinstance(value, bool) else repr(value)
    return f"sampling.{name}={shown} cannot be sent: {where}; {remedy}"


def _written(name: str, value: Any, key: str, dialect: str, api: str) -> dict[str, Any]:
    """Return the keys for a value as the server takes it. Raises Unsent for a value that it does not take."""
    match name:
        case "penalty_last_n" | "dry_penalty_last_n":
            return {key: -1 if value is None else value}
        case "order":
            return {key: [_SAMPLERS.get(step, step) for step in value]}
        case "dry_sequence_breakers" if not value:
            raise Unsent(f"sampling.{name}=[] cannot be sent: {dialect} takes one at least")
        case "stop" if dialect == OPENAI and len(value) > MOST_STOPS:
            raise Unsent(f"sampling.stop={list(value)!r} cannot be sent: {dialect} takes {MOST_STOPS} strings at most")
        case "bad_words" if odd := [word for word in value if not isinstance(word, str)]:
            raise Unsent(f"sampling.bad_words has {odd[0]!r} and cannot be sent: {dialect} takes strings alone")
        case "logprobs":
            if dialect == OPENAI and value > (most := MOST_LOGPROBS[api]):
                raise Unsent(f"sampling.logprobs={value} cannot be sent: {dialect} gives {most} at most ({api})")
            count = (
                max(value, 1) if dialect == LLAMA_SERVER else value
            )  # at 0 it gives none, not even of the drawn token
            return {"logprobs": True, key: count} if api == CHAT else {key: count}
        case "logit_bias":
            return _logit_bias(value, key, dialect)
    return {key: value}


def _logit_bias(value: Mapping[int | str, float], key: str, dialect: str) -> dict[str, Any]:
    if dialect == LLAMA_SERVER:  # in pairs a text of digits stays a text
        return {key: [[token, False if bias == -math.inf else bias] for token, bias in value.items()]}
    texts = [token for token in value if isinstance(token, str)]
    bounded = {str(token): -MOST_BIAS if bias == -math.inf else bias for token, bias in value.items()}
    beyond = [bias for bias in bounded.values() if abs(bias) > MOST_BIAS and dialect in (OPENAI, VLLM)]
    refused = None
    if texts and dialect != LLAMA_CPP_PYTHON:
        refused = f"has the text {texts[0]!r} and cannot be sent: {dialect} takes token ids alone"
    elif texts and len(texts) < len(value):
        refused = f"cannot be sent: {dialect} takes token ids or texts, not both at once"
    elif beyond:
        refused = f"has {beyond[0]!r} and cannot be sent: {dialect} takes -100 (a ban, as -.inf) to 100"
    if refused is not None:
        raise Unsent(f"sampling.logit_bias {refused}")
    return {key: bounded} | ({"logit_bias_type": "tokens"} if texts else {})
