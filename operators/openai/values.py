"""Values of a request's body: checked, and turned into columns of its row."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from operators.openai.faults import Code, Fault

Columns = dict[str, Any]
Read = Callable[[Any], Columns]
"""From a value that is not null to columns. Raises Fault."""

MOST_INT32 = 2**31 - 1
SHOWN = 60
"""Characters of a value that an error shows."""


def invalid(what: str, value: object, allowed: str) -> Fault:
    """The fault of a value that cannot be."""
    return Fault(Code.INVALID_VALUE, f"{what} is {shown(value)}; allowed: {allowed}")


def unsupported(what: str, remedy: str) -> Fault:
    """The fault of something that the API has and this job has not."""
    return Fault(Code.UNSUPPORTED_PARAMETER, f"{what} is not supported; {remedy}")


def shown(value: object) -> str:
    """A value as JSON, of a length that fits into a line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def is_whole(value: object) -> bool:
    """Whether it is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def number(name: str, least: float, most: float) -> Read:
    """A number in a range."""

    def read(value: Any) -> Columns:
        given = isinstance(value, int | float) and not isinstance(value, bool)
        if not given or not least <= value <= most:  # neither NaN nor infinity lies between two numbers
            raise invalid(name, value, f"a number from {least:g} to {most:g}")
        return {name: float(value)}

    return read


def whole(name: str, least: int, most: int = MOST_INT32, column: str | None = None) -> Read:
    """A whole number in a range, for `column` (None: the one of the same name)."""

    def read(value: Any) -> Columns:
        if not is_whole(value) or not least <= value <= most:
            raise invalid(name, value, f"a whole number from {least} to {most}")
        return {column or name: value}

    return read


def flag(name: str) -> Read:
    """true or false."""

    def read(value: Any) -> Columns:
        if not isinstance(value, bool):
            raise invalid(name, value, "true or false")
        return {name: value}

    return read


def only(name: str, *allowed: object, remedy: str) -> Read:
    """A parameter that is supported as far as it asks for nothing."""

    def read(value: Any) -> Columns:
        # 0 equals False in Python, and `store: 0` is not `store: false`.
        if not any(value == one and type(value) is type(one) for one in allowed):
            raise unsupported(f"{name}={shown(value)}", remedy)
        return {}

    return read


def no_effect(value: Any) -> Columns:
    """A parameter that says nothing about the answer."""
    return {}


def stop(value: Any) -> Columns:
    """One string or up to four."""
    texts = [value] if isinstance(value, str) else value
    if not _is_list_of(texts, lambda text: isinstance(text, str) and text != "") or len(texts) > 4:
        raise invalid("stop", value, "a string, or a list of one to four strings, none of them empty")
    return {"stop": texts}


def top_p(value: Any) -> Columns:
    """From 0 to 1. At 0 the likeliest token is left, as it is at any value that small."""
    found = number("top_p", 0, 1)(value)
    return {"top_p": max(found["top_p"], 1e-9)}


def logit_bias(value: Any) -> Columns:
    """A mapping of token ids to -100 ... 100."""
    allowed = "an object of token ids (digits), each with a number from -100 to 100"
    if not isinstance(value, Mapping):
        raise invalid("logit_bias", value, allowed)
    entries = []
    for token, bias in value.items():
        right = isinstance(bias, int | float) and not isinstance(bias, bool) and -100 <= bias <= 100
        digits = token.isascii() and token.isdigit() and len(token) <= len(str(MOST_INT32))
        if not (digits and int(token) <= MOST_INT32 and right):
            raise invalid(f"logit_bias[{json.dumps(token)}]", bias, allowed)
        entries.append({"token": int(token), "bias": float(bias)})
    return {"logit_bias": entries}


def response_format(value: Any) -> Columns:
    """text, json_object or json_schema: the schema of the row, as JSON text, or null."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": '{"type": "object"}'}
    if kind != "json_schema":
        raise invalid("response_format", value, '{"type": "text"}, "json_object" or "json_schema"')
    inner = value.get("json_schema")
    if not isinstance(inner, Mapping) or not isinstance(inner.get("schema"), Mapping):
        raise invalid("response_format.json_schema", inner, "an object with name, schema (an object) and strict")
    unknown = sorted(inner.keys() - {"name", "description", "schema", "strict"})
    if unknown:
        raise Fault(Code.UNKNOWN_PARAMETER, f"response_format.json_schema has the unknown key '{unknown[0]}'")
    return {"json_schema": json.dumps(inner["schema"])}


def texts_or_ids(name: str, value: Any) -> list[str | list[int]]:
    """What `prompt` and `input` may be, as a list: a string, strings, token ids, or lists of token ids."""
    if isinstance(value, str):
        return [value]
    if _is_list_of(value, is_token):
        return [value]
    for fits in (_is_text, _are_tokens):
        if _is_list_of(value, fits):
            return list(value)
    raise invalid(name, value, "a string, or a list of strings, of token ids, or of lists of token ids, none empty")


def is_token(value: object) -> bool:
    """Whether it can be a token id."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_INT32


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_tokens(value: object) -> bool:
    return _is_list_of(value, is_token)


def _is_list_of(value: object, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and bool(value) and all(map(fits, value))
