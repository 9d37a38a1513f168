"""Answers: what a choice of a completion says, in the project's words; read from the bodies of servers, written into
those of batch files, and kept in the store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from operators.endpoint.api.checks import (
    Failed,
    OfRow,
    Unusable,
    a_list,
    an_object,
    answer_of,
    clean,
    first_choice,
    maybe_text,
    text,
)
from operators.endpoint.api.dialects import CHAT
from operators.endpoint.api.logprobs import Likely, read_logprobs
from operators.endpoint.api.usage import read_usage

STOP, STOP_STRING, LENGTH = "stop", "stop_string", "length"
"""The project's finish reasons."""
_REASONS: Mapping[str, str] = {
    **dict.fromkeys(("stop", "tool_calls", "function_call", "eos", "eos_token"), STOP),
    "stop_sequence": STOP_STRING,
    **dict.fromkeys(("length", "max_tokens", "model_length"), LENGTH),
}
"""Finish reasons of servers; text-generation-inference and Mistral have their own words."""
_FILTERED = "content_filter"
_UNFINISHED: Mapping[str, str] = {
    "abort": "the server gave up the answer",
    **dict.fromkeys(("error", "network_error"), "the server failed on the answer"),
}
_STOPS = ("stop_reason", "matched_stop")
"""Where vLLM and SGLang say what ended the text: a stop string as text, a token as its id."""
_REASONING = ("reasoning_content", "reasoning")
"""vLLM (newer), Ollama and OpenRouter have the second."""


class AnsweredCall(NamedTuple):
    """A tool call. `arguments`: JSON text as the model wrote it, which need not be valid."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered to the request of a row.

    Args:
        text: the completion, without reasoning and calls.
        reasoning: None: there is none.
        refusal: why the model refuses, in its words; None: it does not.
        calls: the tool calls.
        finish_reason: stop, stop_string or length. That a stop string ended a text only vLLM and SGLang say.
        finish_detail: the server's own word.
        prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens: None where the server does not say.
            Cached tokens are among those of the prompt, tokens of reasoning among those of the completion.
        logprobs: of each drawn token; None if not asked for.
        top_logprobs: the likeliest tokens at each place, likeliest first, as many as the server gave.
        model: the model's name as the server says it; empty if it does not.
    """

    text: str
    finish_reason: str
    finish_detail: str
    reasoning: str | None = None
    refusal: str | None = None
    calls: tuple[AnsweredCall, ...] = ()
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[tuple[Likely, ...], ...] | None = None
    model: str = ""

    @property
    def tool_calls(self) -> list[dict[str, str]]:
        """The calls as the column `tool_calls` has them."""
        return [call._asdict() for call in self.calls]


_NAMES = tuple(field.name for field in fields(Answer))


def read_answer(body: object, api: str) -> Answer:
    """Read the body of a response to /v1/chat/completions (`api` is chat) or /v1/completions.

    Raises:
        Failed: it is an error, it has no choice, or the server gave the answer up: the next may be one.
        Unusable: it is no such body, or the answer was cut by anything but its length.
    """
    answer = answer_of(body)
    choice = first_choice(answer)
    if api == CHAT:
        parts = _message(an_object("message", choice.get("message")))
    else:
        parts = {"text": text("text", choice.get("text"))}
    reason, detail = _finish(choice)
    usage = read_usage(answer)
    if api == CHAT and _is_lost(choice["message"], parts, reason) and usage["completion_tokens"]:
        raise Failed(f"the answer has no text, though it counts {usage['completion_tokens']} tokens")
    logprobs, likeliest = read_logprobs(choice.get("logprobs"))
    return Answer(
        **parts,
        finish_reason=reason,
        finish_detail=detail,
        **usage,
        logprobs=logprobs,
        top_logprobs=likeliest,
        model=clean(model) if isinstance(model := answer.get("model"), str) else "",
    )


def choice_body(answer: Answer, api: str, index: int, calls_id: str, logprobs: object) -> dict[str, Any]:
    """Write a choice of the body that `read_answer` reads.

    Args:
        calls_id: the beginning of the ids of its calls.
        logprobs: of its tokens, as they are written; None: not asked for.
    """
    reason = "length" if answer.finish_reason == LENGTH else "stop"
    if api != CHAT:
        return {"index": index, "text": answer.text, "logprobs": logprobs, "finish_reason": reason}
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": answer.refusal}
    if answer.reasoning is not None:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {"id": f"{calls_id}_{i}", "type": "function", "function": call} for i, call in enumerate(answer.tool_calls)
        ]
        reason = "tool_calls" if reason == "stop" else reason
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}


def _finish(choice: Mapping[str, Any]) -> tuple[str, str]:
    detail = text("finish_reason", choice.get("finish_reason"))
    places = (choice, choice.get("provider_specific_fields"))  # of OpenRouter, and of LiteLLM, which makes a stop of it
    native = [place.get("native_finish_reason") for place in places if isinstance(place, dict)]
    for word in (detail, *native):
        if isinstance(word, str) and word.lower() in _UNFINISHED:
            raise Failed(_UNFINISHED[word.lower()])
    if detail == _FILTERED:
        raise OfRow("the server's content filter cut the answer")
    if detail not in _REASONS:
        raise Unusable(f"finish_reason is {detail[:40]!r}, which is not known")
    reason = _REASONS[detail]
    if reason == STOP and any(isinstance(choice.get(key), str) for key in _STOPS):
        return STOP_STRING, detail
    return reason, detail


def _is_lost(message: Mapping[str, Any], parts: Mapping[str, Any], reason: str) -> bool:
    """Return whether a message that came to its end has nothing in it: not even an empty text."""
    return reason == STOP and message.get("content") is None and not any(parts.values())


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    parts = _content(message.get("content"))
    for key in _REASONING:
        parts["reasoning"] = parts["reasoning"] or maybe_text(key, message.get(key))
    parts["refusal"] = parts["refusal"] or maybe_text("refusal", message.get("refusal"))
    return parts | {"calls": tuple(_calls(message))}


def _content(content: object) -> dict[str, Any]:
    """Return the text of a content, and the reasoning and refusal among its parts."""
    if content is None or isinstance(content, str):
        return {"text": clean(content or ""), "reasoning": None, "refusal": None}
    texts: dict[str, list[str]] = {"text": [], "thinking": [], "refusal": []}
    for part in a_list("content", content):
        part = an_object("a part of content", part)
        kind = text("the type of a part of content", part.get("type"))
        if kind not in texts:
            raise Unusable(f"content has a part of the type {kind[:40]!r}")
        value = part.get(kind)
        texts[kind].append(_thought(value) if kind == "thinking" else text(f"a part of content, {kind}", value))
    answer, thought, refusal = map("".join, texts.values())
    return {"text": answer, "reasoning": thought or None, "refusal": refusal or None}


def _thought(value: object) -> str:
    """Return the text of a part that is reasoning: Mistral has a list of parts in it."""
    if isinstance(value, str):
        return clean(value)
    parts = [an_object("a part of thinking", part).get("text") for part in a_list("thinking", value)]
    return "".join([text("the text of a part of thinking", part) for part in parts])


def _calls(message: Mapping[str, Any]) -> Iterator[AnsweredCall]:
    calls = message.get("tool_calls")
    if calls is None:
        older = message.get("function_call")
        calls = [] if older is None else [{"function": older}]
    for call in a_list("tool_calls", calls):
        function = an_object("the function of a call", an_object("a call", call).get("function"))
        yield AnsweredCall(text("the name of a call", function.get("name")), _arguments(function.get("arguments")))


def _arguments(value: object) -> str:
    """Return arguments as text; some servers give the object itself, and some nothing where there are none."""
    if value is None or value == "":
        return "{}"
    if isinstance(value, str):
        return clean(value)
    try:
        return clean(json.dumps(an_object("the arguments of a call", value), ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError) as error:
        raise OfRow("the arguments of a call cannot be written as JSON") from error


def to_json(answer: Answer) -> str:
    """Return an answer as JSON text of one line."""
    parts = {name: value for name in _NAMES if (value := getattr(answer, name)) is not None}
    return json.dumps(parts, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def from_json(stored: str) -> Answer:
    """Return the answer that `to_json` has written.

    Raises:
        Unusable: it is none.
    """
    try:
        parts = json.loads(stored)
        parts["calls"] = tuple(AnsweredCall(*call) for call in parts["calls"])
        if (logprobs := parts.get("logprobs")) is not None:
            parts["logprobs"] = tuple(logprobs)
        if (likeliest := parts.get("top_logprobs")) is not None:
            parts["top_logprobs"] = tuple(tuple(Likely(*token) for token in place) for place in likeliest)
        return Answer(**parts)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Unusable("the stored answer cannot be read") from error
