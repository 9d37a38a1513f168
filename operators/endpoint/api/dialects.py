"""The dialects of OpenAI's API: under which key of the body each server takes a setting, and how a server is told.

From: openai-python (CompletionCreateParams), vLLM (entrypoints/openai/*/protocol.py), SGLang
(srt/entrypoints/openai/protocol.py), llama.cpp (tools/server/server-schema.cpp and server-common.cpp),
llama-cpp-python (server/types.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from operators.settings import endpoint
from pipeline.api.errors import ConfigError

CHAT, COMPLETIONS = "chat", "completions"
"""/v1/chat/completions and /v1/completions, as `model.api` names them."""
NAMES = endpoint.DIALECTS
OPENAI, VLLM, SGLANG, LLAMA_SERVER, LLAMA_CPP_PYTHON = NAMES


class Key(NamedTuple):
    """The keys of the body under which a server takes a setting, by API; None: it has no such key."""

    chat: str | None
    completions: str | None = None

    def of(self, api: str) -> str | None:
        """Return the key of `api`."""
        return self.chat if api == CHAT else self.completions


def _row(*keys: str | Key | None) -> Mapping[str, Key]:
    """Return the keys of a setting by dialect; one alone is that of all."""
    row = [key if isinstance(key, Key) else Key(key, key) for key in keys]
    return dict(zip(NAMES, row * len(NAMES) if len(row) == 1 else row, strict=True))


_FORMAT = Key("response_format")
_SCHEMA = Key("response_format", "json_schema")
_MAX = Key("max_completion_tokens", "max_tokens")
_KWARGS = Key("chat_template_kwargs")
_CONTINUE = Key("continue_final_message")

DIALECTS: Mapping[str, Mapping[str, Key]] = {
    # openai, vllm, sglang, llama_server, llama_cpp_python
    "temperature": _row("temperature"),
    "top_k": _row(None, "top_k", "top_k", "top_k", "top_k"),
    "top_p": _row("top_p"),
    "min_p": _row(None, "min_p", "min_p", "min_p", "min_p"),
    "typical_p": _row(None, None, None, "typical_p", None),
    "top_n_sigma": _row(None, None, None, "top_n_sigma", None),
    "dynatemp_range": _row(None, None, None, "dynatemp_range", None),
    "dynatemp_exponent": _row(None, None, None, "dynatemp_exponent", None),
    "repetition_penalty": _row(None, "repetition_penalty", "repetition_penalty", "repeat_penalty", "repeat_penalty"),
    "presence_penalty": _row("presence_penalty"),
    "frequency_penalty": _row("frequency_penalty"),
    "penalty_last_n": _row(None, None, None, "repeat_last_n", None),
    "dry_multiplier": _row(None, None, None, "dry_multiplier", None),
    "dry_base": _row(None, None, None, "dry_base", None),
    "dry_allowed_length": _row(None, None, None, "dry_allowed_length", None),
    "dry_penalty_last_n": _row(None, None, None, "dry_penalty_last_n", None),
    "dry_sequence_breakers": _row(None, None, None, "dry_sequence_breakers", None),
    "xtc_probability": _row(None, None, None, "xtc_probability", None),
    "xtc_threshold": _row(None, None, None, "xtc_threshold", None),
    "mirostat": _row(None, None, None, "mirostat", "mirostat_mode"),
    "mirostat_tau": _row(None, None, None, "mirostat_tau", "mirostat_tau"),
    "mirostat_eta": _row(None, None, None, "mirostat_eta", "mirostat_eta"),
    "order": _row(None, None, None, "samplers", None),
    "logit_bias": _row("logit_bias"),
    "bad_words": _row(None, "bad_words", None, None, None),
    "max_tokens": _row(_MAX, "max_tokens", "max_tokens", "max_tokens", "max_tokens"),
    "min_tokens": _row(None, "min_tokens", "min_tokens", None, "min_tokens"),
    "stop": _row("stop"),
    "stop_token_ids": _row(None, "stop_token_ids", "stop_token_ids", None, None),
    "keep_stop": _row(None, "include_stop_str_in_output", "no_stop_trim", None, None),
    "ignore_eos": _row(None, "ignore_eos", "ignore_eos", "ignore_eos", None),
    "logprobs": _row(Key("top_logprobs", "logprobs")),
    "tools": _row(Key("tool_choice")),
    "thinking_budget": _row(None, "thinking_token_budget", None, Key("thinking_budget_tokens"), None),
    "structured.json_schema": _row(_FORMAT, "response_format", "response_format", _SCHEMA, _FORMAT),
    "structured.regex": _row(None, "structured_outputs", "regex", None, None),
    "structured.choices": _row(None, "structured_outputs", "ebnf", "grammar", "grammar"),
    "structured.grammar": _row(None, "structured_outputs", "ebnf", "grammar", "grammar"),
    "seed": _row("seed"),
    "template_kwargs": _row(None, _KWARGS, _KWARGS, _KWARGS, None),
    "continue_final_message": _row(None, _CONTINUE, _CONTINUE, _CONTINUE, None),
}
"""By setting and dialect the key of the body: the settings of `sampling`, the seed of a row, `model.template_kwargs`
with those of a row, and `data.continue_final_message`. docs/endpoints.md has the other settings of `sampling`."""

NODES: Mapping[str, Mapping[str, str | None]] = {
    "Generate": dict.fromkeys(NAMES, "/chat/completions, /completions"),
    "Embed": dict.fromkeys(NAMES, "/embeddings"),
    "Score": dict.fromkeys(NAMES, "/completions") | {LLAMA_SERVER: None},
    "Choose": dict.fromkeys(NAMES, "/completions") | {LLAMA_SERVER: None},
    "Rerank": dict.fromkeys(NAMES, "/rerank") | {LLAMA_CPP_PYTHON: None},
}
"""By operator and dialect the path that it asks, below the base URL; None: such a server has nothing for it. Score and
Choose ask for the echo of a prompt with its log-probabilities: llama-server does not know `echo`. OpenAI has no
/rerank, and Jina and Cohere, which have it, are spoken to as to OpenAI."""

_OWNERS: Mapping[str, str] = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "llamacpp": LLAMA_SERVER,
    "me": LLAMA_CPP_PYTHON,
    "openai": OPENAI,
    "openai-internal": OPENAI,
    "system": OPENAI,
}
"""Values of `owned_by`. OpenAI's own models are of `openai`, `openai-internal` or `system`."""


def require_path(operator: str, dialect: str) -> str:
    """Return the path that `operator`, one of NODES, asks. Raises ConfigError if such a server has nothing for it."""
    if (path := NODES[operator][dialect]) is None:
        able = ", ".join(name for name, path_there in NODES[operator].items() if path_there is not None)
        raise ConfigError(
            f"model.dialect={dialect}: such a server has nothing for {operator}; those of {able} have. Use one of them,"
            " or a model of this process (model: {path: my.gguf})"
        )
    return path


def dialect_of(card: object) -> str | None:
    """Return the dialect that an answer of GET /v1/models tells, or one model of it; None if it tells none."""
    models = card.get("data") if isinstance(card, Mapping) else None
    cards = models if isinstance(models, list) else [card]
    owners = [model.get("owned_by") for model in cards if isinstance(model, Mapping)]
    dialects = {_OWNERS[owner] for owner in owners if isinstance(owner, str) and owner in _OWNERS}
    return dialects.pop() if len(dialects) == 1 else None
