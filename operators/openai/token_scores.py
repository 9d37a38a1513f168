"""Log-probabilities of tokens in the two shapes of the API.

A token is shown as its bytes in UTF-8, with U+FFFD for what is half a character; the chat shape has the bytes too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Pieces = Sequence[bytes]


def chat_scores(row: dict[str, Any], pieces: Pieces) -> dict[str, Any]:
    """`logprobs` of a choice of /v1/chat/completions."""
    content = [
        {**_entry(token, logprob, pieces), "top_logprobs": [_entry(e["id"], e["logprob"], pieces) for e in top]}
        for token, logprob, top in _tokens(row, pieces)
    ]
    return {"content": content, "refusal": None}


def completion_scores(row: dict[str, Any], pieces: Pieces) -> dict[str, Any]:
    """`logprobs` of a choice of /v1/completions. The token that was drawn is among the likeliest, or one more."""
    tokens, own, tops, offsets = [], [], [], []
    before = b""
    for token, logprob, top in _tokens(row, pieces):
        tokens.append(_text(pieces[token]))
        own.append(logprob)
        tops.append({_text(pieces[token]): logprob} | {_text(pieces[e["id"]]): e["logprob"] for e in top})
        offsets.append(len(before.decode("utf-8", "replace")))
        before += pieces[token]
    return {"tokens": tokens, "token_logprobs": own, "top_logprobs": tops, "text_offset": offsets}


def _tokens(row: dict[str, Any], pieces: Pieces) -> Iterator[tuple[int, float, list[dict[str, Any]]]]:
    """Id, log-probability and the likeliest of each token that is in the text: those of a stop string are not."""
    room = len(row["completion"].encode()) if row["finish_reason"] == "stop_string" else None
    taken = 0
    for token, logprob, top in zip(row["completion_ids"], row["logprobs"], row["top_logprobs"], strict=True):
        if room is not None and taken >= room:
            return
        taken += len(pieces[token])
        yield token, logprob, top


def _entry(token: int, logprob: float, pieces: Pieces) -> dict[str, Any]:
    return {"token": _text(pieces[token]), "logprob": logprob, "bytes": list(pieces[token])}


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")
