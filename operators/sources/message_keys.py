"""Conversations that other tools wrote (ShareGPT and the like): their messages with the names of `data.message_keys`,
and their roles with those of `data.message_roles`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from operators.formats.input_file import InputFile
from operators.prompts.messages import WANTED, NoPrompt, without_nulls
from operators.settings import DataSettings
from operators.sources.union import reject
from pipeline.api.errors import HALF_A_CHARACTER, SchemaError
from pipeline.api.records import Reject, python_values

ROLE = "role"
ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles that stay as they are."""
SHAREGPT = {"human": "user", "gpt": "assistant"}
"""Roles of conversations whose messages have them under `from`."""


class MessageKeys:
    """Renames the keys and roles of the messages of a column, as `data.rename` does columns. It becomes JSON text.

    What is no list of messages stays as it is, for whoever reads it to refuse.

    Args:
        data: the settings; one of `message_keys` and `message_roles` is given.
        column: the name of `data.messages_column` in the files.
    """

    def __init__(self, data: DataSettings, column: str) -> None:
        self._column = column
        self._keys: dict[str, str] = dict(data.message_keys or {})
        usual = SHAREGPT if self._keys.get("from") == ROLE else {}
        self._roles: dict[str, str | None] = {**dict.fromkeys(ROLES), **usual, **(data.message_roles or {})}

    def plan(self, schema: pa.Schema) -> pa.Schema:
        """Return `schema` with the column as text. Raises SchemaError if it is no column that can hold messages."""
        place = schema.get_field_index(self._column)
        if place < 0:
            raise SchemaError(f"data.messages_column: '{self._column}' is no column of {', '.join(schema.names)}")
        kind = schema.field(place).type
        if not pa.types.is_string(kind):
            message = kind.value_type if pa.types.is_list(kind) else kind
            if not (pa.types.is_list(kind) and pa.types.is_struct(message)):
                raise SchemaError(f"column '{self._column}' has type {kind}; messages are {WANTED}")
            names = [field.name for field in message]
            if absent := [key for key in self._keys if key not in names]:
                raise SchemaError(
                    f"data.message_keys names '{absent[0]}'; messages of '{self._column}' have {', '.join(names)}"
                )
        return schema.set(place, pa.field(self._column, pa.string()))

    def renamed(
        self, data: pa.RecordBatch, rows: np.ndarray, file: InputFile
    ) -> tuple[pa.RecordBatch, np.ndarray, tuple[Reject, ...]]:
        """Return rows of a file and their numbers with the column renamed, and rejects for those that have a message
        with a role that is not known or a key twice."""
        place = data.schema.get_field_index(self._column)
        texts: list[str | None] = []
        wrong: dict[int, str] = {}
        for i, value in enumerate(python_values(data.column(place))):
            try:
                texts.append(self._text(value))
            except NoPrompt as error:
                wrong[i] = str(error)
        bad = tuple(reject(data, i, int(rows[i]), why, file) for i, why in wrong.items())
        if wrong:
            good = np.array([i not in wrong for i in range(len(rows))])
            data, rows = data.filter(pa.array(good)), rows[good]
        field = pa.field(self._column, pa.string())
        return data.set_column(place, field, pa.array(texts, pa.string())), rows, bad

    def _text(self, value: Any) -> str | None:
        if value is None:
            return None
        try:
            messages = json.loads(value) if isinstance(value, str) else without_nulls(value)
        except (ValueError, RecursionError):
            return str(value)
        if not isinstance(messages, list):
            return value if isinstance(value, str) else None
        try:
            text = json.dumps([self._message(message, i) for i, message in enumerate(messages)], ensure_ascii=False)
            text.encode()
        except UnicodeEncodeError as error:
            raise NoPrompt(f"column '{self._column}' has {HALF_A_CHARACTER}") from error
        except TypeError as error:
            raise NoPrompt(f"column '{self._column}' holds what JSON cannot: {error}") from error
        return text

    def _message(self, message: Any, index: int) -> Any:
        if not isinstance(message, dict):
            return message
        where = f"message {index} of column '{self._column}'"
        named: dict[str, Any] = {}
        for key, value in message.items():
            new = self._keys.get(key) or key
            if value is not None and named.get(new) is not None:
                raise NoPrompt(f"{where} has '{new}' twice, with the names of data.message_keys")
            if value is not None or new not in named:
                named[new] = value
        role = named.get(ROLE)
        if isinstance(role, str):
            if role not in self._roles:
                remedy = f"data.message_roles={{{role}: user}} (or another of {', '.join(ROLES)}) says whose turn it is"
                raise NoPrompt(f"{where} has the role '{role}'; {remedy}")
            named[ROLE] = self._roles[role] or role
        return named
