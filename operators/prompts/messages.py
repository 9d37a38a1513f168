"""Conversations in a column: lists of messages, or their JSON text, with contents as text or as parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

import pyarrow as pa

from operators.images.columns import IMAGE_MARK
from operators.images.read import BadImage
from operators.rows.json_values import noun
from pipeline.api.errors import SchemaError

WANTED = "list<struct<role: string, content: string>>, or text that holds such a list as JSON"
TEXT_PARTS = ("text", "input_text", "output_text")
"""The types of text parts in OpenAI's APIs."""
IMAGE_PARTS = ("image_url", "input_image", "image")
"""The types of parts with images, of OpenAI's APIs and of Hugging Face."""
_IMAGE_KEYS = ("image_url", "image")
_OF_PLACEHOLDER = ("type", "detail", "index")
"""Keys of a part that only says where an image of the row's columns belongs."""
_NOTHING: tuple[Any, ...] = (None, "", {}, [])
BETWEEN_PARTS = "\n"
"""The separator between text parts, as in llama-server and vLLM, for chat templates that take only texts. Beside an
image there is none."""


REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys of a message under which reasoning is found. The first is given to every template; gpt-oss reads the second."""


class PartsText(str):
    """The text of a content that came as parts, with these for a template that takes parts."""

    parts: list[dict[str, Any]]

    @classmethod
    def of(cls, parts: list[dict[str, Any]]) -> PartsText:
        joined, before = "", IMAGE_MARK
        for text in (part["text"] for part in parts):
            apart = not (before.startswith(IMAGE_MARK) or text.startswith(IMAGE_MARK))
            joined, before = joined + (BETWEEN_PARTS if apart else "") + text, text
        text = cls(joined)
        text.parts = parts
        return text

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # what takes texts needs no more


class PartImages(Protocol):
    """Takes the images of parts; returns what stands in the text for each. Raises BadImage."""

    def text(self, text: str) -> str:
        """Return a text as it is; raise BadImage for one that stands for an image."""

    def part(self, value: Any) -> str:
        """Take the image that a part holds."""

    def placeholder(self, index: Any) -> str:
        """Take the next image of the row's columns, for a part that holds none. `index`: which one that is, as the part
        says, or None."""


class NoImages:
    """Refuses the images of parts. `why`: follows the place of the part."""

    def __init__(self, why: str) -> None:
        self._why = why

    def text(self, text: str) -> str:
        return text

    def part(self, value: Any) -> str:
        raise BadImage(self._why)

    def placeholder(self, index: Any) -> str:
        raise BadImage(self._why)


class KeptImages:
    """Looks at the images of parts whose messages are kept as they are, as JSON."""

    def text(self, text: str) -> str:
        return text

    def part(self, value: Any) -> str:
        if not isinstance(value, str):
            raise BadImage("an image as bytes has no place in JSON; give it as a path or a `data:` URL")
        return IMAGE_MARK

    def placeholder(self, index: Any) -> str:
        return IMAGE_MARK


def before_content(content: Any, marks: str) -> Any:
    """Return the content of a message with the marks of images before its text."""
    if not marks or not isinstance(content, str):
        return content
    parts = getattr(content, "parts", None)
    return f"{marks}{content}" if parts is None else PartsText.of([{"type": "text", "text": marks}, *parts])


def in_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `messages` with their contents as parts: those they came as, or one for a text."""
    return [
        {**message, "content": getattr(text, "parts", [{"type": "text", "text": text}])}
        if isinstance(text := message.get("content"), str)
        else message
        for message in messages
    ]


class NoPrompt(ValueError):
    """A row has no prompt; the message says why."""


def require_messages(schema: pa.Schema, name: str, key: str = "data.messages_column") -> None:
    """Raise SchemaError unless there is a column `name`, of a type that can hold conversations. `key`: names it."""
    if name not in schema.names:
        raise SchemaError(f"{key}={name} is no column; the input has {', '.join(schema.names)}")
    kind = schema.field(name).type
    if kind != pa.string() and not holds_messages(kind):
        raise SchemaError(f"column '{name}' has type {kind}; messages are {WANTED}")


def holds_messages(kind: pa.DataType) -> bool:
    """Return True for lists of structs with a `role` (string) and a `content`."""
    message = kind.value_type if pa.types.is_list(kind) else None
    fields = {f.name: f.type for f in message} if message is not None and pa.types.is_struct(message) else {}
    return fields.get("role") == pa.string() and "content" in fields


def conversation(value: object, column: str, images: PartImages | None = None) -> list[dict[str, Any]]:
    """Return the messages of a row, each with its content as text, without keys that only other rows' messages have.

    Args:
        value: the row's value in the messages column.
        column: the name of that column.
        images: takes those of parts; None: there may be none.

    Raises:
        NoPrompt: it holds no conversation that can be written out as text; says which message and why.
    """
    if value is None:
        raise NoPrompt(f"column '{column}' is null; give it messages or drop the row")
    messages = read_messages(value, column)
    if not messages:
        raise NoPrompt(f"column '{column}' has no messages; give it one or drop the row")
    return [_message(message, f"message {i} of column '{column}'", images) for i, message in enumerate(messages)]


def read_messages(value: object, column: str) -> list[Any]:
    """Return the messages of a row as they are, without keys that only other rows' messages have; raises NoPrompt if it
    holds no list. `conversation` has the arguments."""
    messages = _parsed(value, column) if isinstance(value, str) else without_nulls(value)
    if not isinstance(messages, list):
        raise NoPrompt(f"column '{column}' holds {noun(messages)}; messages are a list")
    return messages


def _parsed(text: str, column: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise NoPrompt(
            f"column '{column}' is text that is not JSON ({error.msg} at character {error.pos + 1}); write the list of"
            " messages as JSON, or name the column with data.prompt_column="
        ) from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        raise NoPrompt(f"column '{column}' is JSON that cannot be read: {error}") from error


def _message(value: object, where: str, images: PartImages | None) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise NoPrompt(f"{where} is {noun(value)}; a message has a role and a content")
    message = {k: v for k, v in (value or {}).items() if v is not None}
    lacks = [key for key in ("role", "content") if key not in message]
    if lacks and not (lacks == ["content"] and "tool_calls" in message):
        has = f"; it has {', '.join(sorted(message))}, which data.message_keys can rename" if message else ""
        raise NoPrompt(f"{where} has no {lacks[0]}{has}")
    if not isinstance(message["role"], str):
        raise NoPrompt(f"{where} has a role that is {noun(message['role'])}; roles are texts")
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [_call(call) for call in calls] if isinstance(calls, list) else calls
    if (reasoning := next((message[key] for key in REASONING if key in message), None)) is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message if lacks else {**message, "content": _text(message["content"], where, images)}


def _call(call: object) -> object:
    """Return a tool call with its arguments, where they are the JSON text of an object, as that object."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return call  # the template judges it
    if isinstance(arguments := function.get("arguments"), str):
        with suppress(ValueError, RecursionError):
            read = json.loads(arguments)
            function = {**function, "arguments": read if isinstance(read, dict) else arguments}
    return {**call, "function": function} if "function" in call else function


def with_text_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `messages` with the arguments of their tool calls as JSON text, for templates that want a text."""
    return [
        {**message, "tool_calls": [_with_text(call) for call in message["tool_calls"]]}
        if isinstance(message.get("tool_calls"), list)
        else message
        for message in messages
    ]


def _with_text(call: Any) -> Any:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        return call
    changed = {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}
    return {**call, "function": changed} if "function" in call else changed


def without_nulls(value: Any) -> Any:
    """Return a value of a column without the keys of its structs that are null: other rows have them."""
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _text(content: object, where: str, images: PartImages | None) -> str:
    if not isinstance(content, str | list):
        raise NoPrompt(f"{where} has a content that is {noun(content)}; it is a text or a list of parts")
    try:
        if isinstance(content, str):
            return content if images is None else images.text(content)
        return PartsText.of([_part(part, where, images) for part in content if part is not None])
    except BadImage as error:
        raise NoPrompt(f"{where}: {error}") from None


def _part(part: object, where: str, images: PartImages | None) -> dict[str, Any]:
    fields = part if isinstance(part, Mapping) else {"text": part}
    text, kind = fields.get("text"), fields.get("type")
    has_image = any(fields.get(key) not in _NOTHING for key in _IMAGE_KEYS)
    if has_image if kind not in IMAGE_PARTS else text not in _NOTHING:
        what = "both a text and an image" if text not in _NOTHING else "an image and another type"
        raise NoPrompt(f"{where} has a part with {what}; give the image a part of its own, of type 'image_url'")
    if isinstance(text, str) and (kind is None or kind in TEXT_PARTS):
        fields = {key: value for key, value in fields.items() if key not in _IMAGE_KEYS}
        return {**fields, "type": "text", "text": text if images is None else images.text(text)}
    if kind in IMAGE_PARTS and images is not None:
        return {"type": "text", "text": _image(fields, images)}
    named = f"of type '{kind}'" if kind else f"that is {noun(part)}"
    readable = "only text" if images is None else "only texts and images"
    raise NoPrompt(f"{where} has a part {named}, and {readable} can be read; drop the part or the row")


def _image(part: Mapping[str, Any], images: PartImages) -> str:
    """Return the mark of the image of a part."""
    keys = (*_IMAGE_KEYS, "url", "path")
    value = next((part[key] for key in keys if part.get(key) is not None), None)
    if isinstance(value, Mapping) and "url" in value:
        value = value["url"]
    if value is None and isinstance(text := part.get("base64"), str):
        value = f"data:;base64,{text}"
    if value is not None:
        return images.part(value)
    others = [key for key, value in part.items() if key not in _OF_PLACEHOLDER and value not in _NOTHING]
    if others:
        raise BadImage(
            f"an image part with '{others[0]}', which is not read; give the image as {', '.join(keys)} or base64"
        )
    return images.placeholder(part.get("index"))
