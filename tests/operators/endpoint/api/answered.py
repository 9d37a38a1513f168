"""Answers of servers, as each writes them."""

from __future__ import annotations

from typing import Any

from operators.endpoint.api.dialects import CHAT, COMPLETIONS

MESSAGE: dict[str, Any] = {"role": "assistant", "content": "Hello", "refusal": None}
ENTRY = {"token": "Hello", "logprob": -0.5, "bytes": [72], "top_logprobs": []}
OPENAI: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m-2026",
    "choices": [{"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "stop"}],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 2, "audio_tokens": 0},
    },
}
VLLM: dict[str, Any] = {
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "4", "reasoning": "2 and 2", "tool_calls": []},
            "logprobs": {
                "content": [
                    {
                        "token": "4",
                        "logprob": -0.25,
                        "bytes": [52],
                        "top_logprobs": [{"token": "5", "logprob": -9999.0}],
                    }
                ]
            },
            "finish_reason": "stop",
            "stop_reason": "END",
        }
    ],
    "usage": {"prompt_tokens": 5, "total_tokens": 6, "completion_tokens": 1, "prompt_tokens_details": None},
}
SGLANG: dict[str, Any] = {
    "model": "m",
    "choices": [
        {
            "message": {"content": None, "reasoning_content": "let me see", "tool_calls": None},
            "finish_reason": "length",
            "matched_stop": None,
        }
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": None, "reasoning_tokens": 7},
}
LLAMA_SERVER: dict[str, Any] = {
    "model": "m.gguf",
    "choices": [
        {
            "text": " a b",
            "index": 0,
            "logprobs": {
                "content": [
                    {
                        "id": 7,
                        "token": " a",
                        "logprob": -1,
                        "top_logprobs": [
                            {"id": 8, "token": "x", "logprob": -2.5},
                            {"id": 7, "token": " a", "logprob": -1},
                        ],
                    }
                ]
            },
            "finish_reason": "length",
        }
    ],
    "usage": {"completion_tokens": 2, "prompt_tokens": 3, "total_tokens": 5},
    "timings": {"cache_n": 2, "prompt_n": 1},
}
LLAMA_CPP_PYTHON: dict[str, Any] = {
    "model": "tiny",
    "choices": [
        {
            "text": " a",
            "index": 0,
            "logprobs": {
                "tokens": [" a"],
                "text_offset": [4],
                "token_logprobs": [-0.5],
                "top_logprobs": [{"b": -1.5, " a": -0.5}],
            },
            "finish_reason": "stop",
        }
    ],
    "usage": None,
}
BODIES = [(CHAT, OPENAI), (CHAT, VLLM), (CHAT, SGLANG), (COMPLETIONS, LLAMA_SERVER), (COMPLETIONS, LLAMA_CPP_PYTHON)]
