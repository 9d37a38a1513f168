"""Make the conversation of each row: from a column of prompts, a column of messages, or templates over the columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from operators.prompts.columns import columns_of, used_columns
from operators.prompts.messages import NoPrompt, PartImages, before_content, conversation, require_messages
from operators.prompts.row_images import RowImages
from operators.prompts.template import Template
from pipeline.api.errors import ConfigError, SchemaError, did_you_mean

USER, SYSTEM = "user", "system"
ROLES = (SYSTEM, USER, "assistant")
Messages = list[dict[str, Any]]


class PromptColumn:
    """One user message from a column."""

    needs_chat: str | None = None
    has_parts = False

    def __init__(self, name: str) -> None:
        self._name = name

    def plan(self, schema: pa.Schema) -> list[str]:
        if self._name not in schema.names:
            raise SchemaError(_no_prompt(schema, self._name))
        kind = schema.field(self._name).type
        if kind != pa.string():
            raise SchemaError(
                f"column '{self._name}' has type {kind}, and a prompt is a string; make a text of it"
                f" ('data.prompt_template=\"{{{{ {self._name} }}}}\"')"
            )
        return [self._name]

    def of(self, row: Mapping[str, Any], images: PartImages | None = None) -> Messages:
        if not (text := row[self._name]):
            state = "null" if text is None else "empty"
            raise NoPrompt(f"column '{self._name}' is {state}; give it a text or drop the row")
        return [{"role": USER, "content": text}]


class MessagesColumn:
    """A column of conversations, as `operators.prompts.messages` has them. `key`: the setting that names it."""

    has_parts = True

    def __init__(self, name: str, key: str = "data.messages_column") -> None:
        self.needs_chat = f"{key}={name!r}"
        self._name = name
        self._key = key

    def plan(self, schema: pa.Schema) -> list[str]:
        require_messages(schema, self._name, self._key)
        return [self._name]

    def of(self, row: Mapping[str, Any], images: PartImages | None = None) -> Messages:
        return conversation(row[self._name], self._name, images)


class MessageTemplates:
    """Messages whose contents are templates over the columns.

    Args:
        messages: {role, content} of each, in their order; empty is no conversation yet.
        key: the setting that they come from.

    Raises:
        ConfigError: one has other keys or an unknown role, or its content does not compile.
    """

    has_parts = False

    def __init__(self, messages: Sequence[Mapping[str, str]], key: str = "messages") -> None:
        if lone := [message for message in messages if set(message) != {"role", "content"}]:
            raise ConfigError(f"{key} has {dict(lone[0])}; a message is {{role: user, content: '...'}}")
        roles = [message["role"] for message in messages]
        if other := [role for role in roles if role not in ROLES]:
            raise ConfigError(f"{key}: the role '{other[0]}' is unknown; it is one of {', '.join(ROLES)}")
        self.needs_chat = None if roles == [USER] else f"{key} with more than one user message"
        often = Counter(roles)
        self._messages = [
            (role, Template(message["content"], _named(role, i, often) if key == "messages" else key, strict=True))
            for i, (role, message) in enumerate(zip(roles, messages, strict=True))
        ]

    def plan(self, schema: pa.Schema) -> list[str]:
        used = {name for _, template in self._messages for name in used_columns(template, schema)}
        return [name for name in schema.names if name in used]

    def of(self, row: Mapping[str, Any], images: PartImages | None = None) -> Messages:
        messages = [{"role": role, "content": template.render(dict(row))} for role, template in self._messages]
        for message, (role, template) in zip(messages, self._messages, strict=True):
            if role == USER and not message["content"]:
                raise NoPrompt(f"{template.name} gives an empty text")
        return messages


Conversations = PromptColumn | MessagesColumn | MessageTemplates
"""The conversation that each row begins with.

`plan` returns the columns that are read, or raises SchemaError; `of` returns one message or more for their values, or
raises NoPrompt or what a template raises. `images`: takes those of parts. `needs_chat`: the setting that only a chat
template can serve, for an error; None if a text alone would do. `has_parts`: messages may have images in parts."""


def with_images(messages: Messages, images: RowImages, *, first: bool) -> Messages:
    """Return `messages` with the images of columns that have no place in them before the text of a user message: of the
    `first` one, which the answers behind it are about, or of the last one, which is asked now. Raises BadImage."""
    texts = [text for message in messages if isinstance(text := message.get("content"), str)]
    if marks := images.unplaced(texts):
        users = [message for message in messages if message["role"] == USER]
        if not users:
            raise NoPrompt("the row has images, and no message of the user for them")
        message = users[0 if first else -1]
        message["content"] = before_content(message.get("content"), marks)
    return messages


def _named(role: str, index: int, often: Counter[str]) -> str:
    return f"the {role} message" if often[role] == 1 else f"message {index + 1} ({role})"


def _no_prompt(schema: pa.Schema, name: str) -> str:
    several = next((column for column in schema.names if name in re.split(r"[,;|\t]", column)), None)
    hint = f"; '{several}' looks like several columns: data.separator= says what is between them" if several else ""
    return (
        f"there is no column '{name}'; {columns_of(schema)}: name the one that holds the prompt with"
        " data.prompt_column=, or make one of several with data.prompt_template="
        + (hint or did_you_mean(name, schema.names, "data.prompt_column="))
    )
