"""The parameters of each endpoint; a body with any other is refused. docs/openai_batch.md explains each."""

from __future__ import annotations

from collections.abc import Mapping

from operators.openai.values import (
    Read,
    embedding_input,
    flag,
    ignored,
    kept,
    logit_bias,
    messages,
    number,
    refused,
    response_format,
    stop,
    texts_or_ids,
    top_p,
    whole,
)

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
REQUIRED = ("model", "messages", "prompt", "input")
"""Parameters that a body must have, if its endpoint has them."""
MAX_CHOICES = 128
_NO_TOOLS = "leave it out, or ask for JSON of a schema with response_format"
_TEXT_ONLY = "the models are given text, and answer with text"
_LEAVE_OUT = "leave it out"
_SAY_IT = "say it in the messages"

_ALL: Mapping[str, Read] = {
    "model": kept(lambda value: isinstance(value, str) and value != "", "a string"),
    "user": ignored,
}
_GENERATE: Mapping[str, Read] = {
    **_ALL,
    "max_tokens": whole(1),
    "temperature": number(0, 2),
    "top_p": top_p,
    "n": whole(1, MAX_CHOICES),
    "seed": whole(-(2**63), 2**63 - 1),
    "stop": stop,
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "logit_bias": logit_bias,
    "stream": refused(_LEAVE_OUT, False),
    "stream_options": refused(_LEAVE_OUT),
    # Sampling keys of this project, which are not in the API.
    "top_k": whole(0),
    "min_p": number(0, 0.999999),
    "repetition_penalty": number(0.01, 100),
    "min_tokens": whole(0),
}
PARAMETERS: Mapping[str, Mapping[str, Read]] = {
    CHAT: {
        **_GENERATE,
        "messages": messages,
        "max_completion_tokens": whole(1),
        "logprobs": flag,
        "top_logprobs": whole(0, 20),
        "response_format": response_format,
        "tools": refused(_NO_TOOLS, []),
        "tool_choice": refused(_NO_TOOLS, "none"),
        "parallel_tool_calls": refused(_NO_TOOLS),
        "functions": refused(_NO_TOOLS, []),
        "function_call": refused(_NO_TOOLS, "none"),
        "modalities": refused(_TEXT_ONLY, ["text"]),
        "audio": refused(_TEXT_ONLY),
        "prediction": refused(_LEAVE_OUT),
        "reasoning_effort": refused(_SAY_IT, "none"),
        "verbosity": refused(_SAY_IT),
        "web_search_options": refused(_LEAVE_OUT),
        "metadata": ignored,
        "store": ignored,
        "service_tier": ignored,
        "safety_identifier": ignored,
        "prompt_cache_key": ignored,
        "prompt_cache_retention": ignored,
    },
    COMPLETIONS: {
        **_GENERATE,
        "prompt": texts_or_ids,
        "logprobs": whole(0, 5),
        "echo": flag,
        "best_of": whole(1, MAX_CHOICES),
        "suffix": refused("put all text into the prompt", ""),
    },
    EMBEDDINGS: {
        **_ALL,
        "input": embedding_input,
        "encoding_format": kept(lambda value: value in ("float", "base64"), '"float" or "base64"'),
        "dimensions": whole(1),
    },
}
"""By endpoint and name, the reader of the value. A null is as if the parameter was not there."""
