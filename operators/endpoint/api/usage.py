"""The tokens that an answer says it used. They are bookkeeping: what is odd in them costs no answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from operators.endpoint.api.json_shape import shown
from operators.rows.json_values import noun

COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
"""Numbers of tokens in an Answer."""
MOST_TOKENS = 2**31 - 1
"""Counts are kept in int32."""


def read_usage(body: Mapping[str, Any]) -> dict[str, Any]:
    """Read the tokens that an answer says it used, by the names that Answer has for them; null where it does not say,
    or what it says is no number of tokens: an answer is good and paid for, whatever is counted."""
    given = _given_counts(body)
    return {name: _count(given.get(name)) for name in COUNTS}


def odd_usage(body: object) -> str | None:
    """Return what an answer says of its tokens that cannot be; None if nothing is wrong with it."""
    if not isinstance(body, dict):
        return None
    if not isinstance(body.get("usage"), dict | None):
        return f"that usage is {noun(body['usage'])}, not an object"
    odd = {name: value for name, value in _given_counts(body).items() if _count(value) is None}
    return next((f"that {name} is {shown(value)}, no number of tokens" for name, value in odd.items()), None)


def _count(found: object) -> int | None:
    """Return a number of tokens; None for what is none."""
    if type(found) not in (int, float) or not 0 <= found <= MOST_TOKENS or found != int(found):  # type: ignore[operator, call-overload]
        return None
    return int(found)  # type: ignore[call-overload,no-any-return]


def _given_counts(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an answer says of the tokens it used, by the names that Answer has for them, where it says that."""
    usage = _maybe(body.get("usage"))
    prompt, completion = _maybe(usage.get("prompt_tokens_details")), _maybe(usage.get("completion_tokens_details"))
    places: Mapping[str, list[object]] = {
        # rerankers of Jina say the total alone
        "prompt_tokens": [usage.get("prompt_tokens"), usage.get("total_tokens")],
        "completion_tokens": [usage.get("completion_tokens")],
        "cached_tokens": [
            prompt.get("cached_tokens"),
            usage.get("prompt_cache_hit_tokens"),  # DeepSeek
            _maybe(body.get("timings")).get("cache_n"),  # llama-server, older
        ],
        "reasoning_tokens": [completion.get("reasoning_tokens"), usage.get("reasoning_tokens")],  # SGLang the second
    }
    found = {name: [value for value in values if value is not None] for name, values in places.items()}
    return {name: values[0] for name, values in found.items() if values}


def _maybe(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}
