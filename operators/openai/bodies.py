"""Response bodies in the shape of OpenAI's API, made from the rows of a request.

What the API takes from a clock or from chance is fixed: `created` is 0, and ids follow from row and custom_id.
In log-probabilities a token is its bytes in UTF-8, with U+FFFD for half a character; the chat shape has the bytes too.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

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


def line_of(first: Row, body: dict[str, Any]) -> dict[str, Any]:
    """Return the line of a request in output.jsonl. `first`: a row of it."""
    digest = digest_of(first["row"], first["custom_id"])
    response = {"status_code": 200, "request_id": f"req_{digest}", "body": body}
    return {"id": f"batch_req_{digest}", "custom_id": first["custom_id"], "response": response, "error": None}


def body_of(rows: Sequence[Row], pieces: Pieces, digest: str, fingerprint: str) -> dict[str, Any]:
    """Return the body of the response. `rows`: all of the request, in the order of their choices."""
    url, model = rows[0]["url"], rows[0]["model"]
    if url == EMBEDDINGS:
        data = [
            {"object": "embedding", "index": i, "embedding": _encoded(_embedding(row), row["encoding_format"])}
            for i, row in enumerate(rows)
        ]
        return {"object": "list", "data": data, "model": model, "usage": usage(rows)}
    is_chat = url == CHAT
    choice = _chat_choice if is_chat else _completion_choice
    return {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{digest}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": 0,
        "model": model,
        "choices": [choice(row, i, pieces) for i, row in enumerate(rows)],
        "usage": usage(rows),
        "system_fingerprint": fingerprint,
    }


def usage(rows: Sequence[Row]) -> dict[str, Any]:
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


def _chat_choice(row: Row, index: int, pieces: Pieces) -> dict[str, Any]:
    message: Row = {"role": "assistant", "content": row["completion"], "refusal": None}
    if row.get("reasoning") is not None:
        message["reasoning_content"] = row["reasoning"]
    ended = _REASONS[row["finish_reason"]]
    if row.get("tool_calls"):
        name = f"call_{digest_of(row['row'], row['custom_id'])}_{index}"
        message["content"] = row["completion"] or None
        message["tool_calls"] = [
            {"id": f"{name}_{i}", "type": "function", "function": call} for i, call in enumerate(row["tool_calls"])
        ]
        ended = "tool_calls" if ended == "stop" else ended
    return {
        "index": index,
        "message": message,
        "logprobs": None if row["logprobs"] is None else _chat_scores(row, pieces),
        "finish_reason": ended,
    }


def _completion_choice(row: Row, index: int, pieces: Pieces) -> dict[str, Any]:
    echoed = _prompt_text(row, pieces) if row["echo"] else ""
    return {
        "index": index,
        "text": echoed + row["completion"],
        "logprobs": None if row["logprobs"] is None else _completion_scores(row, pieces),
        "finish_reason": _REASONS[row["finish_reason"]],
    }


def _prompt_text(row: Row, pieces: Pieces) -> str:
    if row["given_ids"] is None:
        return str(row["prompt"])
    return b"".join(pieces[token] for token in row["given_ids"]).decode("utf-8", "replace")


def _embedding(row: Row) -> list[float]:
    """Return the embedding of a row, or the first `dimensions` numbers of it: with length 1 where the whole has it."""
    whole = np.array(row["embedding"], np.float64)
    first = whole[: row["dimensions"]]
    length = np.linalg.norm(first) if abs(np.linalg.norm(whole) - 1) < _ROUNDING else 1.0
    given = first.size < whole.size and length > 0
    return (first / length if given else first).astype(np.float32).tolist()  # type: ignore[no-any-return]


def _encoded(vector: Sequence[float], encoding: str | None) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(np.array(vector, "<f4").tobytes()).decode()
    return list(vector)


def _chat_scores(row: dict[str, Any], pieces: Pieces) -> dict[str, Any]:
    """Return `logprobs` of a choice of /v1/chat/completions."""
    content = [
        {**_entry(token, logprob, pieces), "top_logprobs": [_entry(e["id"], e["logprob"], pieces) for e in top]}
        for token, logprob, top in _tokens(row, pieces)
    ]
    return {"content": content, "refusal": None}


def _completion_scores(row: dict[str, Any], pieces: Pieces) -> dict[str, Any]:
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


def _tokens(row: dict[str, Any], pieces: Pieces) -> Iterator[tuple[int, float, list[dict[str, Any]]]]:
    """Yield id, log-probability and likeliest tokens of each token in the text, without those of a stop string."""
    room = _end_of_text(row, pieces) if row["finish_reason"] == "stop_string" else None
    taken = 0
    for token, logprob, top in zip(row["completion_ids"], row["logprobs"], row["top_logprobs"], strict=True):
        if room is not None and taken >= room:
            return
        taken += len(pieces[token])
        yield token, logprob, top


def _end_of_text(row: dict[str, Any], pieces: Pieces) -> int:
    """Return the number of bytes up to the stop string, those of the reasoning and its tags among them."""
    drawn = b"".join([pieces[token] for token in row["completion_ids"]])
    thought, said = (row.get("reasoning") or "").encode(), row["completion"].encode()
    behind = drawn.find(thought) + len(thought) if thought else 0
    return drawn.find(said, behind) + len(said)


def _entry(token: int, logprob: float, pieces: Pieces) -> dict[str, Any]:
    return {"token": _text(pieces[token]), "logprob": logprob, "bytes": list(pieces[token])}


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")
