"""Log-probabilities of tokens in the shapes of /v1/chat/completions and /v1/completions, read and written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from operators.endpoint.api.checks import Unusable, a_list, an_object, clean, maybe_object, real, text

LEAST_LOGPROB = -9999.0
"""What vLLM and OpenAI write for a log-probability of minus infinity."""
_TOKEN_ID = "token_id:"
"""With return_tokens_as_token_ids vLLM writes tokens as this and their number."""


class Likely(NamedTuple):
    """One of the likeliest tokens at a place. `id`: None where the server does not say it."""

    token: str
    logprob: float
    id: int | None = None


class Drawn(NamedTuple):
    """A token of a completion to write: its bytes, and the likeliest tokens at its place, likeliest first."""

    piece: bytes
    logprob: float
    likeliest: tuple[Drawn, ...] = ()

    @property
    def token(self) -> str:
        """Its text, with U+FFFD for half a character."""
        return self.piece.decode("utf-8", "replace")


def read_logprobs(value: object) -> tuple[tuple[float, ...] | None, tuple[tuple[Likely, ...], ...] | None]:
    """Read the log-probabilities of the drawn tokens and the likeliest tokens at each place, None where there are none.

    Either shape is read, whatever was asked for: llama-server has that of chats for both.
    """
    shapes = maybe_object("logprobs", value)
    if (content := shapes.get("content")) is not None:
        entries = [an_object("an entry of logprobs", entry) for entry in a_list("logprobs.content", content)]
        logprobs = tuple(_logprob(entry.get("logprob")) for entry in entries)
        return logprobs, tuple(_likeliest(entry.get("top_logprobs")) for entry in entries)
    if shapes.get("token_logprobs") is None:
        return None, None
    logprobs = tuple(_logprob(logprob) for logprob in a_list("token_logprobs", shapes["token_logprobs"]))
    tops = shapes.get("top_logprobs")
    tops = [None] * len(logprobs) if tops is None else a_list("top_logprobs", tops)
    likeliest = tuple(map(_likeliest, tops))
    if len(likeliest) != len(logprobs):
        raise Unusable(f"logprobs has {len(logprobs)} tokens and {len(likeliest)} lists of likeliest ones")
    return logprobs, likeliest


def _logprob(value: object) -> float:
    return LEAST_LOGPROB if value == -math.inf else real("a log-probability", value)


def _likeliest(value: object) -> tuple[Likely, ...]:
    """Read the likeliest tokens at a place; those without a number, which JSON has for -inf, are left out."""
    if isinstance(value, dict):
        entries = [(token, logprob, None) for token, logprob in value.items()]
    else:
        items = [] if value is None else a_list("top_logprobs", value)
        objects = [an_object("a likeliest token", item) for item in items]
        entries = [(text("a token", each.get("token")), each.get("logprob"), each.get("id")) for each in objects]
    likeliest = [Likely(clean(token), _logprob(n), _id(token, id)) for token, n, id in entries if n is not None]
    return tuple(sorted(likeliest, key=lambda token: -token.logprob))


def _id(token: str, value: object) -> int | None:
    if type(value) is int and 0 <= value < 2**31:
        return value
    digits = token.removeprefix(_TOKEN_ID)
    is_number = digits != token and digits.isascii() and digits.isdigit() and len(digits) < 10
    return int(digits) if is_number else None


def chat_logprobs(tokens: Iterable[Drawn]) -> dict[str, Any]:
    """Write `logprobs` of a choice of /v1/chat/completions."""
    content = [{**_entry(token), "top_logprobs": list(map(_entry, token.likeliest))} for token in tokens]
    return {"content": content, "refusal": None}


def _entry(token: Drawn) -> dict[str, Any]:
    return {"token": token.token, "logprob": token.logprob, "bytes": list(token.piece)}


def completion_logprobs(tokens: Iterable[Drawn]) -> dict[str, Any]:
    """Write `logprobs` of a choice of /v1/completions. The drawn token is added if it is not among the likeliest."""
    columns: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    text_before = b""
    for token in tokens:
        likeliest = {each.token: each.logprob for each in (token, *token.likeliest)}
        values = (token.token, token.logprob, likeliest, len(text_before.decode("utf-8", "replace")))
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
        text_before += token.piece
    return columns
