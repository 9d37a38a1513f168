"""Readers of tool calls, one for each way in which models write them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

_NAME = re.compile(r"[\w.-]+")
_PLAIN = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null|None")
"""Gemma's plain values. Its template writes a null as None."""
_KEY = re.compile(r"[^:,{}\[\]]+")
_TAG_NAME = re.compile(r"[^<>\n]*>")
_TAG_END = re.compile(r"</parameter>|(?=<parameter=|</function>)")
"""Ends an argument between tags. Some models leave its closing tag out, so the next tag ends it, too."""
_NEXT_CALL = re.compile(r"\s*(?:[;,]\s*)?(?:<\|python_tag\|>\s*)?(?=\{)")


class BrokenCall(ValueError):
    """A call was begun that cannot be read; the message says what is wrong with it."""


class NoCall(ValueError):
    """What looked like a call is a text."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool.

    Args:
        name: of the tool.
        arguments: by name.
    """

    name: str
    arguments: dict[str, Any]


Read = Callable[[str, int], tuple[list[ToolCall], int]]
"""Reads the calls in a text from a position behind the opening; returns them and the position behind their end. Raises
BrokenCall and NoCall."""


def _json(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `at`, behind white space, and the position behind it."""
    at = _skip(text, at)
    try:
        return json.JSONDecoder(parse_constant=_refuse).raw_decode(text, at)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        raise BrokenCall("the text ends within a call" if cut else f"a call is no JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # NaN, numbers of thousands of digits, thousands of brackets
        raise BrokenCall(f"a call is no JSON: {error}") from error


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _skip(text: str, at: int) -> int:
    """Return the position of the next character that is no white space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _expect(text: str, at: int, wanted: str) -> int:
    """Return the position behind `wanted`, which must come next, behind white space."""
    at = _skip(text, at)
    if text.startswith(wanted, at):
        return at + len(wanted)
    if wanted.startswith(text[at:]):
        raise BrokenCall("the text ends within a call")
    raise BrokenCall(f"{text[at : at + 20]!r} comes where a call has {wanted!r}")


def _call(value: Any) -> ToolCall:
    """Return the call in a JSON object with `name` and `arguments` or `parameters`."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise BrokenCall("a call is no object with a name")
    arguments = value.get("arguments")
    return ToolCall(value["name"], _object(value.get("parameters") if arguments is None else arguments))


def _object(value: Any) -> dict[str, Any]:
    """Return the arguments that a value holds: an object or its JSON text; null and a blank text are none."""
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_constant=_refuse) if value.strip() else None
        except (ValueError, RecursionError) as error:
            raise BrokenCall(f"the arguments of a call are a text that is no JSON: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BrokenCall("the arguments of a call are no object")
    return value


def read_hermes(text: str, at: int) -> tuple[list[ToolCall], int]:
    value, at = _json(text, at)
    call = _call(value)
    return [call], _expect(text, at, "</tool_call>")


def read_tags(text: str, at: int) -> tuple[list[ToolCall], int]:
    at = _expect(text, at, "<function=")
    name, at = _tag_name(text, at)
    arguments: dict[str, Any] = {}
    while not text.startswith("</function>", at := _skip(text, at)):
        key, at = _tag_name(text, _expect(text, at, "<parameter="))
        arguments[key], at = _tag_value(text, at)
    return [ToolCall(name, arguments)], _expect(text, at + len("</function>"), "</tool_call>")


def _tag_name(text: str, at: int) -> tuple[str, int]:
    """Return the name in a tag and the position behind the tag, which is in one line."""
    match = _TAG_NAME.match(text, at)
    if match is None:
        cut = "<" not in text[at:] and "\n" not in text[at:]
        raise BrokenCall("the text ends within a call" if cut else f"{text[at : at + 20]!r} is no name in a tag")
    return match[0][:-1], match.end()


def _tag_value(text: str, at: int) -> tuple[str, int]:
    """Return the text of an argument between tags, and the position behind it. Tags in JSON are part of it."""
    try:
        _, begin = _json(text, at)
    except BrokenCall:
        begin = at
    end = _TAG_END.match(text, _skip(text, begin)) if begin > at else None
    end = end or _TAG_END.search(text, at)
    if end is None:
        raise BrokenCall("the text ends within a call")
    return text[at : end.start()].removeprefix("\n").removesuffix("\n"), end.end()


def _until(text: str, at: int, end: str) -> tuple[str, int]:
    """Return the text up to `end`, and the position behind it."""
    place = text.find(end, at)
    if place < 0:
        raise BrokenCall("the text ends within a call")
    return text[at:place], place + len(end)


def read_llama3(text: str, at: int) -> tuple[list[ToolCall], int]:
    calls: list[ToolCall] = []
    while True:
        value, at = _json(text, at)
        is_call = isinstance(value, dict) and isinstance(value.get("name"), str)
        complete = is_call and ({"parameters", "arguments"} & {*value} or {*value} <= {"name", "type"})
        if not calls and not text.lstrip().startswith("<") and not complete:
            raise NoCall("a JSON object that is an answer")
        calls.append(_call(value))
        if (following := _NEXT_CALL.match(text, at)) is None:
            return calls, _skip(text, at)
        at = following.end()


def read_mistral(text: str, at: int) -> tuple[list[ToolCall], int]:
    at = _skip(text, at)
    if text.startswith("[", at):
        values, at = _json(text, at)
        return [_call(value) for value in values], at
    name = _NAME.match(text, at)
    if name is None:
        raise BrokenCall("a call has no name")
    at = name.end()
    if text.startswith("[CALL_ID]", at):
        _, at = _until(text, at, "[ARGS]")
    else:
        at = _expect(text, at, "[ARGS]")
    arguments, at = _json(text, at)
    return [ToolCall(name[0], _object(arguments))], at


_HARMONY_HEADER = re.compile(
    r"(?P<name>[\w.-]+)(?:<\|channel\|>(?:commentary|analysis))?\s*(?:<\|constrain\|>)?(?:json)?\s*<\|message\|>"
)


def read_harmony(text: str, at: int) -> tuple[list[ToolCall], int]:
    header = _HARMONY_HEADER.match(text, at)
    if header is None:
        raise BrokenCall("a call has no <|message|>")
    at = header.end()
    if text.startswith("<|call|>", _skip(text, at)):
        return [ToolCall(header["name"], {})], _skip(text, at) + 8
    arguments, at = _json(text, at)
    behind = _skip(text, at)
    return [ToolCall(header["name"], _object(arguments))], behind + 8 if text.startswith("<|call|>", behind) else at


def braces(quote: str, closing: str) -> Read:
    """Make a reader of Gemma's `call:NAME{key:value}` with `quote` around texts."""

    def value(text: str, at: int) -> tuple[Any, int]:
        at = _skip(text, at)
        if text.startswith(quote, at):
            return _until(text, at + len(quote), quote)
        if text.startswith("{", at):
            return mapping(text, at + 1)
        if text.startswith("[", at):
            return sequence(text, at + 1)
        plain = _PLAIN.match(text, at)
        if plain is None or plain.end() == len(text):
            cut = plain is not None or len(text) - at < len(quote)
            raise BrokenCall("the text ends within a call" if cut else f"{text[at : at + 20]!r} is no value")
        return None if plain[0] == "None" else _json(plain[0], 0)[0], plain.end()

    def mapping(text: str, at: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        while not text.startswith("}", at := _skip(text, at)):
            at = _expect(text, at, ",") if values else at
            at = _skip(text, at)
            if text.startswith(quote, at):
                name, at = _until(text, at + len(quote), quote)
            else:
                key = _KEY.match(text, at)
                name, at = ("", at) if key is None else (key[0].strip(), key.end())
            values[name], at = value(text, _expect(text, at, ":"))
        return values, at + 1

    def sequence(text: str, at: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while not text.startswith("]", at := _skip(text, at)):
            item, at = value(text, _expect(text, at, ",") if items else at)
            items.append(item)
        return items, at + 1

    def read(text: str, at: int) -> tuple[list[ToolCall], int]:
        at = _expect(text, at, "call:")
        named = at
        while at < len(text) and text[at] not in "{<":
            at += 1
        name = text[named:at].strip()
        if not text.startswith("{", at):  # no arguments
            return [ToolCall(name, {})], _expect(text, at, closing)
        try:
            arguments, at = mapping(text, at + 1)
        except RecursionError as error:
            raise BrokenCall("a call is nested too deeply") from error
        return [ToolCall(name, arguments)], _expect(text, at, closing)

    return read
