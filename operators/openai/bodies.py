"""Response bodies in the shape of OpenAI's API, made from the rows of a request.

What the API takes from a clock or from chance is fixed: `created` is 0, and ids follow from row and custom_id.
In log-probabilities a token is its bytes in UTF-8, with U+FFFD for half a character; the chat shape has the bytes too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from operators.endpoint.api.answers import Answer, AnsweredCall, choice_body
from operators.endpoint.api.logprobs import Drawn, chat_logprobs, completion_logprobs
from operators.endpoint.api.usage import usage_body
from operators.endpoint.api.vectors import vector_entry
from operators.openai.requests import CHAT, EMBEDDINGS

Row = dict[str, Any]
"""A row after Generate and Embed, by column."""
Pieces = Sequence[bytes]
_ROUNDING = 1e-5
"""How far the length of a normalised vector may be from 1: float32 has 24 bits."""


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
    prompt = sum(len(row["prompt_ids"]) for row in rows if not row["sample"])  # once, however many choices it has
    if first["url"] == EMBEDDINGS:
        data = [vector_entry(i, _embedding(row), row["encoding_format"]) for i, row in enumerate(rows)]
        return {"object": "list", "data": data, "model": first["model"], "usage": usage_body(prompt)}
    is_chat, digest = first["url"] == CHAT, digest_of(first["row"], first["custom_id"])
    answers = [_answer(row, pieces) for row in rows]
    completion = sum(row["completion_token_count"] for row in rows)
    reasoning = [answer.reasoning_tokens for answer in answers if answer.reasoning_tokens is not None]
    return {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{digest}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": 0,
        "model": first["model"],
        "choices": [
            choice_body(answer, "chat" if is_chat else "completions", i, f"call_{digest}_{i}", _logprobs(row, pieces))
            for i, (answer, row) in enumerate(zip(answers, rows, strict=True))
        ],
        "usage": usage_body(prompt, completion, sum(reasoning) if reasoning else None),
        "system_fingerprint": fingerprint,
    }


def _answer(row: Row, pieces: Pieces) -> Answer:
    prompt = ""
    if row.get("echo"):
        ids = row["given_ids"]
        prompt = row["prompt"] if ids is None else b"".join(pieces[id] for id in ids).decode("utf-8", "replace")
    # Where the model reasons, rows without reasoning have none of its tokens.
    reasoning_tokens = (row["reasoning_token_count"] or 0) if "reasoning_token_count" in row else None
    return Answer(
        text=prompt + row["completion"],
        finish_reason=row["finish_reason"],
        finish_detail=row["finish_reason"],
        reasoning=row.get("reasoning"),
        calls=tuple(AnsweredCall(**call) for call in row.get("tool_calls") or ()),
        reasoning_tokens=reasoning_tokens if row["url"] == CHAT else None,
    )


def _embedding(row: Row) -> np.ndarray:
    """Return the embedding of a row, or the first `dimensions` numbers of it: with length 1 where the whole has it."""
    vector = np.array(row["embedding"], np.float64)
    first = vector[: row["dimensions"]]
    length = np.linalg.norm(first) if abs(np.linalg.norm(vector) - 1) < _ROUNDING else 1.0
    return (first / length if first.size < vector.size and length > 0 else first).astype(np.float32)


def _logprobs(row: Row, pieces: Pieces) -> dict[str, Any] | None:
    if row["logprobs"] is None:
        return None
    return (chat_logprobs if row["url"] == CHAT else completion_logprobs)(_tokens(row, pieces))


def _tokens(row: Row, pieces: Pieces) -> Iterator[Drawn]:
    """Yield each token in the text, without those of a stop string."""
    end = _end_of_text(row, pieces) if row["finish_reason"] == "stop_string" else math.inf
    length = 0
    for token, logprob, likeliest in zip(row["completion_ids"], row["logprobs"], row["top_logprobs"], strict=True):
        if length >= end:
            return
        length += len(pieces[token])
        yield Drawn(pieces[token], logprob, tuple(Drawn(pieces[e["id"]], e["logprob"]) for e in likeliest))


def _end_of_text(row: Row, pieces: Pieces) -> int:
    """Return the number of bytes up to the stop string, those of the reasoning and its tags among them."""
    drawn = b"".join([pieces[token] for token in row["completion_ids"]])
    reasoning, text = (row.get("reasoning") or "").encode(), row["completion"].encode()
    behind = drawn.find(reasoning) + len(reasoning) if reasoning else 0
    return drawn.find(text, behind) + len(text)
