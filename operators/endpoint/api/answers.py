"""Answers: what a completion of an endpoint says, in the project's words, and its form in the store."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from operators.endpoint.api.dialects import CHAT
from operators.endpoint.api.json_shape import (
    Failed,
    OfRow,
    Unusable,
    answer_of,
    clean,
    first_choice,
    listed,
    maybe_object,
    maybe_text,
    member,
    real,
    text,
)
from operators.endpoint.api.usage import read_usage

__all__ = ["Answer", "AnsweredCall", "Likely", "Unusable", "from_json", "read_answer", "to_json"]

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
LEAST_LOGPROB = -9999.0
"""What vLLM and OpenAI write for a log-probability of minus infinity."""
_STOPS = ("stop_reason", "matched_stop")
"""Where vLLM and SGLang say what ended the text: a stop string as text, a token as its id."""
_REASONING = ("reasoning_content", "reasoning")
"""vLLM (newer), Ollama and OpenRouter have the second."""
_TOKEN_ID = "token_id:"
"""With return_tokens_as_token_ids vLLM writes tokens as this and their number."""


class AnsweredCall(NamedTuple):
    """A tool call. `arguments`: JSON text as the model wrote it, which need not be valid."""

    name: str
    arguments: str


class Likely(NamedTuple):
    """One of the likeliest tokens at a place. `id`: None where the server does not say it."""

    token: str
    logprob: float
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered to the request of a row.

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
    whole = answer_of(body)
    choice = first_choice(whole)
    if api == CHAT:
        said = _message(member(choice.get("message"), "message"))
    else:
        said = {"text": text(choice.get("text"), "text")}
    reason, detail = _finish(choice)
    usage = read_usage(whole)
    if api == CHAT and _is_lost(choice["message"], said, reason) and usage["completion_tokens"]:
        raise Failed(f"the answer has no text, though it counts {usage['completion_tokens']} tokens")
    logprobs, top = _logprobs(choice.get("logprobs"))
    return Answer(
        **said,
        finish_reason=reason,
        finish_detail=detail,
        **usage,
        logprobs=logprobs,
        top_logprobs=top,
        model=clean(model) if isinstance(model := whole.get("model"), str) else "",
    )


def _finish(choice: Mapping[str, Any]) -> tuple[str, str]:
    detail = text(choice.get("finish_reason"), "finish_reason")
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


def _is_lost(message: Mapping[str, Any], said: Mapping[str, Any], reason: str) -> bool:
    """Return whether a message that came to its end has nothing in it: not even an empty text."""
    rest = (said["reasoning"], said["refusal"], said["calls"])
    return reason == STOP and message.get("content") is None and not any(rest)


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    said = _content(message.get("content"))
    for key in _REASONING:
        said["reasoning"] = said["reasoning"] or maybe_text(message.get(key), key)
    said["refusal"] = said["refusal"] or maybe_text(message.get("refusal"), "refusal")
    return said | {"calls": tuple(_calls(message))}


def _content(content: object) -> dict[str, Any]:
    """Return the text of a content, and the reasoning and refusal among its parts."""
    if content is None or isinstance(content, str):
        return {"text": clean(content or ""), "reasoning": None, "refusal": None}
    said: dict[str, list[str]] = {"text": [], "thinking": [], "refusal": []}
    for part in listed(content, "content"):
        inner = member(part, "a part of content")
        kind = text(inner.get("type"), "the type of a part of content")
        if kind not in said:
            raise Unusable(f"content has a part of the type {kind[:40]!r}")
        value = inner.get(kind)
        said[kind].append(_thought(value) if kind == "thinking" else text(value, f"a part of content, {kind}"))
    whole, thought, refusal = map("".join, said.values())
    return {"text": whole, "reasoning": thought or None, "refusal": refusal or None}


def _thought(given: object) -> str:
    """Return the text of a part that is reasoning: Mistral has a list of parts in it."""
    if isinstance(given, str):
        return clean(given)
    parts = [member(part, "a part of thinking").get("text") for part in listed(given, "thinking")]
    return "".join([text(part, "the text of a part of thinking") for part in parts])


def _calls(message: Mapping[str, Any]) -> Iterator[AnsweredCall]:
    given = message.get("tool_calls")
    if given is None:
        old = message.get("function_call")
        given = [] if old is None else [{"function": old}]
    for call in listed(given, "tool_calls"):
        function = member(member(call, "a call").get("function"), "the function of a call")
        name = text(function.get("name"), "the name of a call")
        yield AnsweredCall(name, _arguments(function.get("arguments")))


def _arguments(given: object) -> str:
    """Return arguments as text; some servers give the object itself, and some nothing where there are none."""
    if given is None or given == "":
        return "{}"
    if isinstance(given, str):
        return clean(given)
    try:
        return clean(json.dumps(member(given, "the arguments of a call"), ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError) as error:
        raise OfRow("the arguments of a call cannot be written as JSON") from error


def _logprobs(given: object) -> tuple[tuple[float, ...] | None, tuple[tuple[Likely, ...], ...] | None]:
    """Read log-probabilities in the shape of chats, or of completions. llama-server has the first for both."""
    found = maybe_object(given, "logprobs")
    if (content := found.get("content")) is not None:
        entries = [member(entry, "an entry of logprobs") for entry in listed(content, "logprobs.content")]
        own = tuple(_logprob(entry.get("logprob")) for entry in entries)
        return own, tuple(tuple(_likely(entry.get("top_logprobs"))) for entry in entries)
    if found.get("token_logprobs") is None:
        return None, None
    own = tuple(_logprob(one) for one in listed(found["token_logprobs"], "token_logprobs"))
    top = found.get("top_logprobs")
    tops = tuple(tuple(_likely(one)) for one in ([None] * len(own) if top is None else listed(top, "top_logprobs")))
    if len(tops) != len(own):
        raise Unusable(f"logprobs has {len(own)} tokens and {len(tops)} lists of likeliest ones")
    return own, tops


def _logprob(given: object) -> float:
    return LEAST_LOGPROB if given == -math.inf else real(given, "a log-probability")


def _likely(given: object) -> list[Likely]:
    """Read the likeliest tokens at a place; those without a number, which JSON has for -inf, are left out."""
    if isinstance(given, dict):
        pairs = [(token, logprob, None) for token, logprob in given.items()]
    else:
        entries = [member(one, "a likeliest token") for one in ([] if given is None else listed(given, "top_logprobs"))]
        pairs = [(text(one.get("token"), "a token"), one.get("logprob"), one.get("id")) for one in entries]
    found = [Likely(clean(token), _logprob(given), _id(token, id)) for token, given, id in pairs if given is not None]
    return sorted(found, key=lambda one: -one.logprob)


def _id(token: str, given: object) -> int | None:
    if type(given) is int and 0 <= given < 2**31:
        return given
    digits = token.removeprefix(_TOKEN_ID)
    is_number = digits != token and digits.isascii() and digits.isdigit() and len(digits) < 10
    return int(digits) if is_number else None


def to_json(answer: Answer) -> str:
    """Return an answer as JSON text of one line."""
    given = {name: value for name in _NAMES if (value := getattr(answer, name)) is not None}
    return json.dumps(given, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def from_json(given: str) -> Answer:
    """Return the answer that `to_json` has written.

    Raises:
        Unusable: it is none.
    """
    try:
        found = json.loads(given)
        found["calls"] = tuple(AnsweredCall(*call) for call in found["calls"])
        if (logprobs := found.get("logprobs")) is not None:
            found["logprobs"] = tuple(logprobs)
        if (top := found.get("top_logprobs")) is not None:
            found["top_logprobs"] = tuple(tuple(Likely(*one) for one in place) for place in top)
        return Answer(**found)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Unusable("the stored answer cannot be read") from error
