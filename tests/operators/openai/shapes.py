"""The lines of OpenAI's batch files as JSON schemas, closed: a key that is not in here is a mistake."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

from operators.openai.requests import CHAT, COMPLETIONS, EMBEDDINGS

TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
NULL = {"type": "null"}


def closed(properties: dict[str, Any], **optional: Any) -> dict[str, Any]:
    names = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties | optional, **names}


def listed(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


def either(*options: Any) -> dict[str, Any]:
    return {"anyOf": list(options)}


ENTRY = {
    "token": TEXT,
    "logprob": {"type": "number", "maximum": 0},
    "bytes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}},
}
CHAT_LOGPROBS = closed(
    {
        "content": {
            "type": "array",
            "items": closed({**ENTRY, "top_logprobs": {"type": "array", "items": closed(ENTRY)}}),
        },
        "refusal": NULL,
    }
)
COMPLETION_LOGPROBS = closed(
    {
        "tokens": {"type": "array", "items": TEXT},
        "token_logprobs": {"type": "array", "items": {"type": "number"}},
        "top_logprobs": {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "number"}}},
        "text_offset": {"type": "array", "items": COUNT},
    }
)
REASON = {"enum": ["stop", "length", "tool_calls"]}
USAGE = closed(
    {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT},
    completion_tokens_details=closed({"reasoning_tokens": COUNT}),
)
CALL = closed({"id": TEXT, "type": {"const": "function"}, "function": closed({"name": TEXT, "arguments": TEXT})})
MESSAGE = closed(
    {"role": {"const": "assistant"}, "content": either(TEXT, NULL), "refusal": NULL},
    reasoning_content=TEXT,
    tool_calls=listed(CALL),
)


def generated(kind: str, prefix: str, choice: dict[str, Any]) -> dict[str, Any]:
    return closed(
        {
            "id": {"type": "string", "pattern": f"^{prefix}-[0-9a-f]{{24}}$"},
            "object": {"const": kind},
            "created": {"const": 0},
            "model": TEXT,
            "choices": listed(closed({"index": COUNT, "finish_reason": REASON, **choice})),
            "usage": USAGE,
            "system_fingerprint": {"type": "string", "pattern": "^fp_"},
        }
    )


BODIES = {
    CHAT: generated("chat.completion", "chatcmpl", {"message": MESSAGE, "logprobs": either(NULL, CHAT_LOGPROBS)}),
    COMPLETIONS: generated("text_completion", "cmpl", {"text": TEXT, "logprobs": either(NULL, COMPLETION_LOGPROBS)}),
    EMBEDDINGS: closed(
        {
            "object": {"const": "list"},
            "data": listed(
                closed(
                    {
                        "object": {"const": "embedding"},
                        "index": COUNT,
                        "embedding": either(TEXT, listed({"type": "number"})),
                    }
                )
            ),
            "model": TEXT,
            "usage": closed({"prompt_tokens": COUNT, "total_tokens": COUNT}),
        }
    ),
}
ID = {"type": "string", "pattern": "^batch_req_[0-9a-f]{24}$"}


def output_line(url: str) -> dict[str, Any]:
    """A line of output.jsonl that answers a request to `url`."""
    request_id = {"type": "string", "pattern": "^req_[0-9a-f]{24}$"}
    response = closed({"status_code": {"const": 200}, "request_id": request_id, "body": BODIES[url]})
    return closed({"id": ID, "custom_id": TEXT, "response": response, "error": NULL})


OUTPUT_LINES = {url: Draft202012Validator(output_line(url)) for url in BODIES}
"""Validators of a line of output.jsonl, by the url of its request."""
ERROR_LINE = Draft202012Validator(
    closed(
        {
            "id": ID,
            "custom_id": either(TEXT, NULL),
            "response": NULL,
            "error": closed({"code": {"type": "string", "pattern": "^[a-z_]+$"}, "message": TEXT}),
        }
    )
)
