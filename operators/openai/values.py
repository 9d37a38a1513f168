"""Readers of the values in a request's body: each checks a value, and returns what its column holds.

A reader is given the value's place, for messages, and raises Fault. It returns None for what says nothing. A fault has
a code for programs and a message for people, and becomes the reason of a reject, `code: message`, so that rejects/ and
errors.jsonl say the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from operators.endpoint.api.checks import (
    MAX_INT32,
    BadValue,
    Read,
    Unusable,
    an_object,
    fitting,
    number,
    one_or_more,
    quoted,
    some,
    some_text,
    text,
)
from operators.endpoint.api.sampling_values import MOST_BIAS, MOST_STOPS

ROLES = {name: name for name in ("system", "developer", "user", "assistant", "tool")} | {"developer": "system"}
"""Roles of messages to their names in chat templates: `developer` is the newer name of `system`."""


class Code(StrEnum):
    """The `code` of an error line."""

    INVALID_LINE = "invalid_line"
    INVALID_CUSTOM_ID = "invalid_custom_id"
    DUPLICATE_CUSTOM_ID = "duplicate_custom_id"
    INVALID_METHOD = "invalid_method"
    INVALID_URL = "invalid_url"
    MODEL_NOT_FOUND = "model_not_found"
    MISSING_PARAMETER = "missing_parameter"
    UNKNOWN_PARAMETER = "unknown_parameter"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    INVALID_VALUE = "invalid_value"
    INCOMPLETE = "incomplete"
    FAILED = "request_failed"


class Fault(Unusable):
    """A request that cannot be answered: the code, what is wrong and, where there is one, the remedy."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{code}: {message}")


def parse_reason(reason: str) -> tuple[Code, str]:
    """Return the code and message of a reject. Rejects of other operators have the code FAILED."""
    code, separator, message = reason.partition(": ")
    if separator and code in list(Code):
        return Code(code), message
    return Code.FAILED, reason


def unsupported(what: str, remedy: str) -> Fault:
    """Return the fault for a feature of the API that this job lacks."""
    return Fault(Code.UNSUPPORTED_PARAMETER, f"{what} is not supported; {remedy}")


def refuse_unknown(where: str, keys: Iterable[str], known: Iterable[str], code: Code = Code.UNKNOWN_PARAMETER) -> None:
    """Raise Fault for the first of `keys` that is not `known`."""
    if unknown := sorted(set(keys) - set(known)):
        raise Fault(code, f"{where} has the unknown key '{unknown[0]}'")


def shape(**reads: Read) -> Read:
    """Make a reader of an object, key by key: it has no others, and those that are missing are read as null."""

    def read(where: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise BadValue(where, value, f"an object with {', '.join(reads)}")
        refuse_unknown(where, value, reads)
        values = {key: read(f"{where}.{key}", value.get(key)) for key, read in reads.items()}
        return {key: part for key, part in values.items() if part is not None}

    return read


def refused(remedy: str, *harmless: object) -> Read:
    """Make a reader that refuses all values but `harmless` ones, which have no effect."""

    def read(where: str, value: Any) -> None:
        # 0 equals False in Python, and `store: 0` is not `store: false`.
        if not any(value == allowed and type(value) is type(allowed) for allowed in harmless):
            raise unsupported(f"{where}={quoted(value)}", remedy)

    return read


def ignored(where: str, value: Any) -> None:
    """Accept any value of a parameter that does not affect the answer."""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _has_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_token(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT32


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_token, value))


stop = one_or_more(f"a text, or a list of 1 to {MOST_STOPS} texts, none of them empty", _has_text, most=MOST_STOPS)
_MANY = "a text, or a list of texts, of token ids, or of lists of token ids, none empty"
texts_or_ids = one_or_more(_MANY, _is_text, _are_tokens)
said_or_ids = one_or_more(_MANY, _has_text, _are_tokens)
_bias = number(-MOST_BIAS, MOST_BIAS)
_function = fitting(lambda value: value == "function", '"function"')
_schema = fitting(lambda value: isinstance(value or {}, dict), "a JSON schema, which is an object")
_FUNCTION = shape(name=some_text, description=ignored, parameters=_schema, strict=ignored)
_TOOLS = some("a list of functions", shape(type=_function, function=_FUNCTION))
_CALL = shape(
    id=lambda where, value: None if value is None else text(where, value),
    type=lambda where, value: "function",
    function=shape(name=text, arguments=text),
    index=ignored,
)
_TEXT_PART = shape(type=text, text=text)
_IMAGE_URL = re.compile(r"data:image/|https?://", re.IGNORECASE)
_IMAGE_PART = shape(
    type=text,
    image_url=shape(
        url=fitting(
            lambda v: isinstance(v, str) and _IMAGE_URL.match(v) is not None,
            "a URL that begins with data:image/, http:// or https://",
        ),
        detail=ignored,
    ),
)
_JSON_SCHEMA = shape(name=ignored, description=ignored, schema=an_object, strict=ignored)
_KEYS: Mapping[str, Mapping[str, Read]] = {
    "assistant": {"tool_calls": some("a list of one call or more", _CALL), "reasoning_content": text},
    "tool": {"tool_call_id": text, "name": text},
}
"""By role, the keys of a message besides role and content."""


def top_p(where: str, value: Any) -> float:
    """Read a number from 0 to 1. At 0 only the likeliest token is left, as at any tiny value."""
    return max(float(number(0, 1)(where, value)), 1e-9)


def logit_bias(where: str, value: Any) -> list[dict[str, Any]]:
    """Read an object of token ids, in digits, to numbers."""
    if not isinstance(value, dict):
        raise BadValue(where, value, f"an object of token ids, each with a number from -{MOST_BIAS:g} to {MOST_BIAS:g}")
    entries = []
    for token, bias in value.items():
        is_short = token.isascii() and token.isdigit() and len(token) <= len(str(MAX_INT32))
        if not (is_short and _is_token(int(token))):
            raise BadValue(f"a key of {where}", token, f"a token id, {MAX_INT32} at most, in digits")
        entries.append({"token": int(token), "bias": _bias(f"{where}[{json.dumps(token)}]", bias)})
    return entries


def response_format(where: str, value: Any) -> str | None:
    """Read text, json_object or json_schema: the schema of the row as JSON text."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return '{"type": "object"}'
    if kind != "json_schema":
        raise BadValue(where, value, 'one of {"type": "text"}, "json_object" and "json_schema"')
    return json.dumps(_JSON_SCHEMA(f"{where}.json_schema", value.get("json_schema"))["schema"])


IMAGE_PART = '"type": "image_url"'
"""Stands in the JSON of messages with an image, and in no other: a text has escapes before its quotes."""


def _part(where: str, part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "image_url":
        return {"type": kind, "image_url": _IMAGE_PART(where, part)["image_url"]}
    if isinstance(kind, str) and kind != "text":
        raise unsupported(f"{where}.type={kind!r}", "the models are given texts and images")
    return {"type": "text", **_TEXT_PART(where, part)}


def _message(where: str, message: Any) -> dict[str, Any]:
    """Read a message; the parts of a content without images are joined by line breaks."""
    if not isinstance(message, dict):
        raise BadValue(where, message, "an object with role and content")
    role = message.get("role")
    if role == "function":
        raise unsupported(f"{where}.role={role!r}", "give it the role tool")
    if not isinstance(role, str) or role not in ROLES:
        raise BadValue(f"{where}.role", role, f"one of {', '.join(ROLES)}")
    keys = {key: value for key, value in message.items() if value is not None and key != "role"}
    content = keys.pop("content", None)
    reads = {key: read for key, read in _KEYS.get(role, {}).items() if key in keys}
    kept = {"role": ROLES[role]} | {key: read(f"{where}.{key}", keys.pop(key)) for key, read in reads.items()}
    if keys:
        raise unsupported(f"{where}.{next(iter(keys))}", f"a message of the role {role} does not have it")
    if isinstance(content, list) and content:
        parts = some("", _part)(f"{where}.content", content)
        if any(part["type"] != "text" for part in parts):
            return {**kept, "content": parts}
        content = "\n".join(part["text"] for part in parts)
    if content is None and "tool_calls" in kept:
        return kept
    if not isinstance(content, str):
        raise BadValue(f"{where}.content", content, "a text, or a list of parts of the type text")
    return {**kept, "content": content}


def messages(where: str, value: Any) -> str:
    """Read a list of messages, as JSON."""
    return json.dumps(some("a list of one message or more", _message)(where, value), ensure_ascii=False)


def tools(where: str, value: Any) -> str | None:
    """Read a list of functions, as JSON; an empty one is none."""
    return json.dumps(value, ensure_ascii=False) if value != [] and _TOOLS(where, value) else None


def tool_choice(where: str, value: Any) -> str:
    """Read none, auto, required, or the name of one function, as the row's `sampling.tools`."""
    if value in ("none", "auto", "required"):
        return str(value)
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadValue(where, value, 'one of none, auto, required, {"type": "function", "function": {"name": ...}}')
    return str(function["name"])
