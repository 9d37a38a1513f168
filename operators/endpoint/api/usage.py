"""Usage: the tokens that an answer says it used. They are bookkeeping: what is odd in them costs no answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from operators.endpoint.api.checks import MAX_INT32, BadValue

_OF_PROMPT, _OF_COMPLETION = "usage.prompt_tokens_details", "usage.completion_tokens_details"
_PLACES: Mapping[str, Sequence[str]] = {
    "prompt_tokens": ["usage.prompt_tokens", "usage.total_tokens"],  # rerankers of Jina say the total alone
    "completion_tokens": ["usage.completion_tokens"],
    # DeepSeek has the second, an older llama-server the third; SGLang has the second of the next
    "cached_tokens": [f"{_OF_PROMPT}.cached_tokens", "usage.prompt_cache_hit_tokens", "timings.cache_n"],
    "reasoning_tokens": [f"{_OF_COMPLETION}.reasoning_tokens", "usage.reasoning_tokens"],
}
"""By the names that Answer has for them, where answers say numbers of tokens."""


def read_usage(body: object) -> dict[str, Any]:
    """Read the tokens that an answer says it used, by the names that Answer has for them; null where it does not say,
    or what it says is no number of tokens: an answer is good and paid for, whatever is counted."""
    return {name: int(value) if _is_count(value) else None for name, value in _values(body)}


def odd_usage(body: object) -> str | None:
    """Return what an answer says of its tokens that cannot be; None if nothing is wrong with it."""
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict | None):
        return str(BadValue("that usage", usage, "an object"))
    odd = ((name, value) for name, value in _values(body) if value is not None and not _is_count(value))
    return next((str(BadValue(f"that {name}", value, "a number of tokens")) for name, value in odd), None)


def usage_body(prompt: int, completion: int | None = None, reasoning: int | None = None) -> dict[str, Any]:
    """Write the tokens of an answer; None: it has no completion, or none of its tokens are told as reasoning."""
    if completion is None:
        return {"prompt_tokens": prompt, "total_tokens": prompt}
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return usage | ({} if reasoning is None else {"completion_tokens_details": {"reasoning_tokens": reasoning}})


def _is_count(value: Any) -> bool:
    """Return whether a value is a number of tokens, which int32 holds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= MAX_INT32 and value == int(value)


def _values(body: object) -> Iterator[tuple[str, Any]]:
    """Yield what an answer says of the tokens it used, null where it says nothing."""
    for name, places in _PLACES.items():
        values = (_at(body, place.split(".")) for place in places)
        yield name, next((value for value in values if value is not None), None)


def _at(body: object, keys: Sequence[str]) -> object:
    for key in keys:
        body = body.get(key) if isinstance(body, dict) else None
    return body
