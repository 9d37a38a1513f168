"""Response bodies in the shape of OpenAI's API, made from the rows of a request.

What the API takes from a clock or from chance is fixed: `created` is 0, and ids follow from row and custom_id.
In log-probabilities a token is its bytes in UTF-8, with U+FFFD for half a character; the chat shape has the bytes too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from operators.endpoint.api.vectors import encoded
from operators.openai.requests import CHAT, EMBEDDINGS

Row = dict[str, Any]
"""A row after Generate and Embed, by column."""
Pieces = Sequence[bytes]
_ROUNDING = 1e-5
"""How far the length of a normalised vector may be from 1: float32 has 24 bits."""
_REASONS = {"stop": "stop", "stop_string": "stop", "length": "length"}


def digest_of(row: int, custom_id: str | None) -> str:
    """Return 24 hexadecimal digits from a line's row and custom_id, the common part of its ids."""
    return hashlib.blake2b(f"{row}|{custom_id}".encode(), digest_size=12).hexdigest()


def line_of(
    row: int, custom_id: str | None, body: Row | None = None, error: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return the line of a request: of output.jsonl with the `body` of its response, of errors.jsonl with an error."""
    digest = digest_of(row, custom_id)
    response = None if body is None else {"status_code": 200, "request_id": f"req_{digest}", "body": body}
    return {"id": f"batch_req_{digest}", "custom_id": custom_id, "response": response, "error": error}


def body_of(rows: Sequence[Row], pieces: Pieces, fingerprint: str) -> dict[str, Any]:
    """Return the body of the response. `rows`: all of the request, in the order of their choices."""
    first = rows[0]
    if first["url"] == EMBEDDINGS:
        data = [{"object": "embedding", "index": i, "embedding": _embedding(row)} for i, row in enumerate(rows)]
        return {"object": "list", "data": data, "model": first["model"], "usage": _usage(rows)}
    prefix, kind = ("chatcmpl", "chat.completion") if first["url"] == CHAT else ("cmpl", "text_completion")
    return {
        "id": f"{prefix}-{digest_of(first['row'], first['custom_id'])}",
        "object": kind,
        "created": 0,
        "model": first["model"],
        "choices": [_choice(row, i, pieces) for i, row in enumerate(rows)],
        "usage": _usage(rows),
        "system_fingerprint": fingerprint,
    }


def _usage(rows: Sequence[Row]) -> dict[str, Any]:
    """Count tokens; those of a prompt once, however many choices it has."""
    prompt = sum(len(row["prompt_ids"]) for row in rows if not row["sample"])
    if rows[0]["completion"] is None:
        return {"prompt_tokens": prompt, "total_tokens": prompt}
    completion = sum(row["completion_token_count"] for row in rows)
    found = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    if rows[0]["url"] != CHAT or "reasoning_token_count" not in rows[0]:
        return found
    reasoning = sum(row["reasoning_token_count"] or 0 for row in rows)
    return {**found, "completion_tokens_details": {"reasoning_tokens": reasoning}}


def _choice(row: Row, index: int, pieces: Pieces) -> dict[str, Any]:
    is_chat = row["url"] == CHAT
    ended, logprobs = _REASONS[row["finish_reason"]], None
    if row["logprobs"] is not None:
        logprobs = _chat_scores(row, pieces) if is_chat else _completion_scores(row, pieces)
    if not is_chat:
        echoed = _prompt_text(row, pieces) if row["echo"] else ""
        return {"index": index, "text": echoed + row["completion"], "logprobs": logprobs, "finish_reason": ended}
    message: Row = {"role": "assistant", "content": row["completion"], "refusal": None}
    if row.get("reasoning") is not None:
        message["reasoning_content"] = row["reasoning"]
    if row.get("tool_calls"):
        name = f"call_{digest_of(row['row'], row['custom_id'])}_{index}"
        calls = [
            {"id": f"{name}_{i}", "type": "function", "function": call} for i, call in enumerate(row["tool_calls"])
        ]
        message |= {"content": row["completion"] or None, "tool_calls": calls}
        ended = "tool_calls" if ended == "stop" else ended
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": ended}


def _prompt_text(row: Row, pieces: Pieces) -> str:
    if row["given_ids"] is None:
        return str(row["prompt"])
    return b"".join(pieces[token] for token in row["given_ids"]).decode("utf-8", "replace")


def _embedding(row: Row) -> list[float] | str:
    """Return the embedding of a row, or the first `dimensions` numbers of it: with length 1 where the whole has it."""
    whole = np.array(row["embedding"], np.float64)
    first = whole[: row["dimensions"]]
    length = np.linalg.norm(first) if abs(np.linalg.norm(whole) - 1) < _ROUNDING else 1.0
    vector = (first / length if first.size < whole.size and length > 0 else first).astype(np.float32)
    return encoded(vector) if row["encoding_format"] == "base64" else vector.tolist()


def _chat_scores(row: Row, pieces: Pieces) -> dict[str, Any]:
    """Return `logprobs` of a choice of /v1/chat/completions."""
    content = [
        {**_entry(token, logprob, pieces), "top_logprobs": [_entry(e["id"], e["logprob"], pieces) for e in top]}
        for token, logprob, top in _tokens(row, pieces)
    ]
    return {"content": content, "refusal": None}


def _completion_scores(row: Row, pieces: Pieces) -> dict[str, Any]:
    """Return `logprobs` of a choice of /v1/completions. The drawn token is added if it is not among the likeliest."""
    tokens, own, tops, offsets = [], [], [], []
    before = b""
    for token, logprob, top in _tokens(row, pieces):
        tokens.append(_text(pieces[token]))
        own.append(logprob)
        tops.append({_text(pieces[token]): logprob} | {_text(pieces[e["id"]]): e["logprob"] for e in top})
        offsets.append(len(before.decode("utf-8", "replace")))
        before += pieces[token]
    return {"tokens": tokens, "token_logprobs": own, "top_logprobs": tops, "text_offset": offsets}


def _tokens(row: Row, pieces: Pieces) -> Iterator[tuple[int, float, list[dict[str, Any]]]]:
    """Yield id, log-probability and likeliest tokens of each token in the text, without those of a stop string."""
    room = _end_of_text(row, pieces) if row["finish_reason"] == "stop_string" else None
    taken = 0
    for token, logprob, top in zip(row["completion_ids"], row["logprobs"], row["top_logprobs"], strict=True):
        if room is not None and taken >= room:
            return
        taken += len(pieces[token])
        yield token, logprob, top


def _end_of_text(row: Row, pieces: Pieces) -> int:
    """Return the number of bytes up to the stop string, those of the reasoning and its tags among them."""
    drawn = b"".join([pieces[token] for token in row["completion_ids"]])
    thought, said = (row.get("reasoning") or "").encode(), row["completion"].encode()
    behind = drawn.find(thought) + len(thought) if thought else 0
    return drawn.find(said, behind) + len(said)


def _entry(token: int, logprob: float, pieces: Pieces) -> dict[str, Any]:
    return {"token": _text(pieces[token]), "logprob": logprob, "bytes": list(pieces[token])}


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")
