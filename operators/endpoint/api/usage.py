"""The tokens that an answer says it used. They are bookkeeping: what is odd in them costs no answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from operators.endpoint.api.json_shape import shown
from operators.rows.json_values import noun

_OF_PROMPT, _OF_COMPLETION = "usage.prompt_tokens_details", "usage.completion_tokens_details"
_PLACES: Mapping[str, Sequence[str]] = {
    "prompt_tokens": ["usage.prompt_tokens", "usage.total_tokens"],  # rerankers of Jina say the total alone
    "completion_tokens": ["usage.completion_tokens"],
    # DeepSeek has the second, an older llama-server the third; SGLang has the second of the next
    "cached_tokens": [f"{_OF_PROMPT}.cached_tokens", "usage.prompt_cache_hit_tokens", "timings.cache_n"],
    "reasoning_tokens": [f"{_OF_COMPLETION}.reasoning_tokens", "usage.reasoning_tokens"],
}
"""By the names that Answer has for them, where answers say numbers of tokens."""
MOST_TOKENS = 2**31 - 1
"""Counts are kept in int32."""


def read_usage(body: Mapping[str, Any]) -> dict[str, Any]:
    """Read the tokens that an answer says it used, by the names that Answer has for them; null where it does not say,
    or what it says is no number of tokens: an answer is good and paid for, whatever is counted."""
    return {name: _count(value) for name, value in _given_counts(body)}


def odd_usage(body: object) -> str | None:
    """Return what an answer says of its tokens that cannot be; None if nothing is wrong with it."""
    if not isinstance(body, dict):
        return None
    if not isinstance(body.get("usage"), dict | None):
        return f"that usage is {noun(body['usage'])}, not an object"
    odd = ((name, value) for name, value in _given_counts(body) if value is not None and _count(value) is None)
    return next((f"that {name} is {shown(value)}, no number of tokens" for name, value in odd), None)


def _count(found: object) -> int | None:
    """Return a number of tokens; None for what is none."""
    if type(found) not in (int, float) or not 0 <= found <= MOST_TOKENS or found != int(found):  # type: ignore[operator, call-overload]
        return None
    return int(found)  # type: ignore[call-overload,no-any-return]


def _given_counts(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what an answer says of the tokens it used, null where it says nothing."""
    for name, places in _PLACES.items():
        found = (_at(body, place.split(".")) for place in places)
        yield name, next((value for value in found if value is not None), None)


def _at(found: object, keys: Sequence[str]) -> object:
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found
