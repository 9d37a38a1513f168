"""Render and Tokenize for a server: it has the chat template and the tokenizer, and is given messages or a text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from operators.prompts.messages import with_text_arguments
from operators.prompts.rendering import PROMPT_TEXT, Prompt, Rendering
from operators.prompts.template import attempt
from operators.rows.token_lists import PROMPT_IDS
from operators.settings import ModelSettings
from operators.settings.endpoint import EndpointSettings
from operators.settings.model import TEXT
from pipeline.api.errors import ConfigError
from pipeline.api.protocols import BaseOperator, Runtime
from pipeline.api.records import Batch, Output, add_columns, require_column

LIKE_NAMES = (
    "the text has what looks like the name of a control token; whether it is read as that token, the server decides"
)
"""What is told of a row."""
_NAME = re.compile(r"<[|\uff5c][^|\uff5c<>]{1,40}[|\uff5c]>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]")
"""Names of control tokens as most vocabularies have them; a server does not list its own."""


class EndpointRender(Rendering):
    """Makes the prompt of each row for a server: the messages as JSON, or with `model.api=completions` a text."""

    title = "Render"

    def plan(self, schema: pa.Schema) -> pa.Schema:
        planned = super().plan(schema)
        assert isinstance(self._model, EndpointSettings)
        self._chats = self._model.api == "chat"
        for what, given, remedy in self._unfit():
            if given:
                raise ConfigError(f"{what} cannot be with model.api={self._model.api} of a server; {remedy}")
        return planned

    def open(self, runtime: Runtime) -> None:
        self._special = {"bos_token": "", "eos_token": ""}

    def prompt_lines(self, row: pa.RecordBatch) -> Iterable[str]:
        yield "what the server is given:"
        text = row.column(PROMPT_TEXT.name).to_pylist()[0] or ""
        yield json.dumps(json.loads(text), ensure_ascii=False, indent=2) if self._chats else text

    def _unfit(self) -> Iterable[tuple[str, bool, str]]:
        """Yield settings, whether they are given, and the remedy, for those that the API cannot have."""
        if self._chats:
            text = "data.prompt_template or messages make a message of it; model.api=completions takes a text"
            yield "template", self._row_template is not None, text
            yield "raw_column", self._raw_column is not None, "model.api=completions takes texts"
        else:
            chat = "model.api=chat takes messages"
            conversation = self._row_template is None
            yield self._conversations.needs_chat or "", conversation and bool(self._conversations.needs_chat), chat
            yield "model.system", self._model.system is not None, chat
            yield self._arguments.setting or "", bool(self._arguments.setting), chat
        yield "writes=user", self._user_writes, "a model of this process can write the user's message"

    def _texts(self, rows: Sequence[tuple[Any, ...]]) -> list[Prompt | Exception]:
        made, tells = [attempt(self._text, values) for values in rows], self._model.special_tokens_in_text == TEXT
        return [
            text
            if isinstance(text, Exception)
            else Prompt(text, told=LIKE_NAMES if tells and _has_name(values) else "")
            for text, values in zip(made, rows, strict=True)
        ]

    def _text(self, values: tuple[Any, ...]) -> str:
        row = dict(zip(self._columns, values, strict=True))
        if self._row_template is not None:
            return self._row_template.render({**self._special, **row})
        messages = self._conversations.of(row)
        if not self._chats:
            return str(messages[0]["content"])
        return json.dumps(list(map(_as_sent, with_text_arguments(self._with_system(messages)))), ensure_ascii=False)


def _has_name(value: object) -> bool:
    """Return whether a text in `value` has what looks like the name of a control token."""
    if isinstance(value, str):
        return _NAME.search(value) is not None
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(map(_has_name, inside))


def _as_sent(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as servers take it: reasoning under one key, calls of tools below `function`."""
    sent = {key: value for key, value in message.items() if key != "thinking"}
    if isinstance(calls := sent.get("tool_calls"), list):
        sent["tool_calls"] = [
            call
            if not isinstance(call, dict) or "function" in call
            else {"id": f"call_{i}", "type": "function", "function": call}
            for i, call in enumerate(calls)
        ]
        sent.setdefault("content", None)
    return sent


class EndpointTokenize(BaseOperator):
    """Adds `prompt_ids` without any, since the server has the tokenizer: the graph is that of a local model."""

    title = "Tokenize"

    def __init__(self, model: ModelSettings, ids_column: str | None = None) -> None:
        if ids_column is not None:
            raise ConfigError(f"ids_column={ids_column}: a server is given texts or messages, no token ids")

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, PROMPT_TEXT.name, [pa.string()])
        self._schema = add_columns(schema, PROMPT_IDS)
        return self._schema

    def process(self, batch: Batch) -> Iterable[Output]:
        none = pa.nulls(batch.num_rows, PROMPT_IDS.type)
        yield batch.with_data(pa.record_batch([*batch.data.columns, none], schema=self._schema))
