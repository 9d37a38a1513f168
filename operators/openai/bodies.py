"""The body of a response, in the shape of OpenAI's API, from the rows that a request has become.

What the API takes from a clock or from chance is fixed: `created` is 0, and ids follow from row and custom_id.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from operators.openai.parameters import CHAT, COMPLETIONS
from operators.openai.token_scores import chat_scores, completion_scores

Row = dict[str, Any]
"""A row behind Generate and Embed, by column."""
Pieces = Sequence[bytes]
_REASONS = {"stop": "stop", "stop_string": "stop", "length": "length"}


def digest_of(row: int, custom_id: str | None) -> str:
    """What the ids of a line have in common: 24 hexadecimal digits that follow from it."""
    return hashlib.blake2b(f"{row}|{custom_id}".encode(), digest_size=12).hexdigest()


def line_of(rows: Sequence[Row], pieces: Pieces, fingerprint: str) -> dict[str, Any]:
    """The line of a request in output.jsonl. `rows`: all that it has become, in the order of their choices."""
    first = rows[0]
    digest = digest_of(first["row"], first["custom_id"])
    response = {"status_code": 200, "request_id": f"req_{digest}", "body": _body(rows, pieces, digest, fingerprint)}
    return {"id": f"batch_req_{digest}", "custom_id": first["custom_id"], "response": response, "error": None}


def _body(rows: Sequence[Row], pieces: Pieces, digest: str, fingerprint: str) -> dict[str, Any]:
    url, model = rows[0]["url"], rows[0]["model"]
    if url == CHAT:
        return {
            "id": f"chatcmpl-{digest}",
            "object": "chat.completion",
            "created": 0,
            "model": model,
            "choices": [_chat_choice(row, i, pieces) for i, row in enumerate(rows)],
            "usage": usage(rows),
            "system_fingerprint": fingerprint,
        }
    if url == COMPLETIONS:
        return {
            "id": f"cmpl-{digest}",
            "object": "text_completion",
            "created": 0,
            "model": model,
            "choices": [_completion_choice(row, i, pieces) for i, row in enumerate(rows)],
            "usage": usage(rows),
            "system_fingerprint": fingerprint,
        }
    data = [
        {"object": "embedding", "index": i, "embedding": _embedding(row["embedding"], row["encoding_format"])}
        for i, row in enumerate(rows)
    ]
    return {"object": "list", "data": data, "model": model, "usage": usage(rows)}


def usage(rows: Sequence[Row]) -> dict[str, int]:
    """Tokens: those of a prompt count once, however many choices it has."""
    prompt = sum(len(row["prompt_ids"]) for row in rows if not row["sample"])
    if rows[0]["completion"] is None:
        return {"prompt_tokens": prompt, "total_tokens": prompt}
    completion = sum(row["completion_token_count"] for row in rows)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _chat_choice(row: Row, index: int, pieces: Pieces) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": row["completion"], "refusal": None},
        "logprobs": None if row["logprobs"] is None else chat_scores(row, pieces),
        "finish_reason": _REASONS[row["finish_reason"]],
    }


def _completion_choice(row: Row, index: int, pieces: Pieces) -> dict[str, Any]:
    echoed = _prompt_text(row, pieces) if row["echo"] else ""
    return {
        "index": index,
        "text": echoed + row["completion"],
        "logprobs": None if row["logprobs"] is None else completion_scores(row, pieces),
        "finish_reason": _REASONS[row["finish_reason"]],
    }


def _prompt_text(row: Row, pieces: Pieces) -> str:
    if row["given_ids"] is None:
        return str(row["prompt"])
    return b"".join(pieces[token] for token in row["given_ids"]).decode("utf-8", "replace")


def _embedding(vector: Sequence[float], encoding: str | None) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(np.array(vector, "<f4").tobytes()).decode()
    return list(vector)
