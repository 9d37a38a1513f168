"""Render and Tokenize for a server: it has the chat template and the tokenizer, and is given messages or a text."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from operators.endpoint.api.checks import Unusable
from operators.endpoint.api.dialects import LLAMA_SERVER, SGLANG, VLLM
from operators.endpoint.connection.request import Request
from operators.endpoint.server import server_of
from operators.images.forms import Image
from operators.prompts.messages import NoPrompt, with_text_arguments
from operators.prompts.rendering import Prompt, Rendering
from operators.prompts.row_images import RowImages, with_images_named
from operators.prompts.special_tokens import HAS_NAMES, NAMES_CHANGED, SpecialTokens
from operators.prompts.template import attempt
from operators.rows.token_lists import NO_PROMPT, PROMPT_IDS, PROMPT_LITERALS, PROMPT_TEXT
from operators.settings import ModelSettings
from operators.settings.endpoint import EndpointSettings
from operators.settings.model import TEXT
from pipeline.api import ROW, Batch, ConfigError, MakesPrompts, Operator, Output, Runtime, add_columns, require_column

LIKE_NAMES = (
    "the text has what looks like the name of a control token; whether it is read as that token, the server decides"
)
"""What is told of a row."""
LIKE = SpecialTokens.like(
    re.compile(r"<[|\uff5c][^|\uff5c<>]{1,40}[|\uff5c]>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]")
)
"""Names of control tokens as most vocabularies have them; a server does not list its own."""

NOT_CUT = (
    "the text has what looks like the name of a control token, and cannot be tokenized so that it is text: {};"
    " model.special_tokens_in_text=parse sends it as it is"
)


def _of_vllm(model: str | None, text: str, begins: bool) -> dict[str, Any]:
    return {"model": model, "prompt": text, "add_special_tokens": begins}


TOKENIZES: Mapping[str, Callable[[str | None, str, bool], dict[str, Any]]] = {
    VLLM: _of_vllm,
    SGLANG: _of_vllm,
    LLAMA_SERVER: lambda model, text, begins: {"content": text, "add_special": begins, "parse_special": True},
}
"""By dialect the body for /tokenize, of a model's name, a piece of a text, and whether a BOS may be put first. The
paths: vLLM's and SGLang's `/tokenize`, and llama.cpp's tools/server."""


class EndpointRender(Rendering, MakesPrompts):
    """Makes the prompt of each row for a server: the messages as JSON, or with `model.api=completions` a text."""

    title = "Render"
    keeps_rows = True

    def plan(self, schema: pa.Schema) -> pa.Schema:
        planned = super().plan(schema)
        assert isinstance(self._model, EndpointSettings)
        self._chats = self._model.api == "chat"
        for setting, is_given, remedy in self._unfit():
            if is_given:
                raise ConfigError(f"{setting} cannot be with model.api={self._model.api} of a server; {remedy}")
        return planned

    def open(self, runtime: Runtime) -> None:
        self._warn(runtime)
        self._special = {"bos_token": "", "eos_token": ""}
        is_text = self._model.special_tokens_in_text == TEXT
        self._names = LIKE if is_text else SpecialTokens(())

    def prompt_lines(self, row: pa.RecordBatch) -> Iterable[str]:
        text = row.column(PROMPT_TEXT.name).to_pylist()[0]
        if text is None:
            yield NO_PROMPT
            return
        yield "what the server is given:"
        text = json.dumps(json.loads(text), ensure_ascii=False, indent=2) if self._chats else text
        yield with_images_named(text, row)

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
            yield self._images.key, bool(self._images.names), chat
        yield "writes=user", self._user_writes, "a model of this process can write the user's message"

    def _texts(self, rows: Sequence[tuple[Any, ...]]) -> list[Prompt | Exception]:
        return [attempt(self._prompt, dict(zip(self._columns, values, strict=True))) for values in rows]

    def _prompt(self, row: dict[str, Any]) -> Prompt:
        images = self._images_of(row)
        marked = self._names.mark(row)
        text, in_order = self._settled(row, images)
        if marked is row:
            return Prompt(text, images=in_order)
        if self._chats:
            return Prompt(text, told=LIKE_NAMES, images=in_order)
        literals = self._names.places(text, self._settled(marked, images)[0])
        if literals is None:
            raise NoPrompt(NAMES_CHANGED)
        return Prompt(text, literals)

    def _raw(self, text: str) -> Prompt:
        marked = self._names.mark(text)
        return Prompt(text, self._names.places(text, marked) or ())

    def _settled(self, row: dict[str, Any], images: RowImages | None) -> tuple[str, Sequence[Image]]:
        text = self._text(row, images)
        return (text, ()) if images is None else images.settled(text)

    def _text(self, row: dict[str, Any], images: RowImages | None) -> str:
        if self._row_template is not None:
            return self._row_template.render({**self._special, **row})
        messages = self._messages(row, images)
        if not self._chats:
            return str(messages[0]["content"])
        return json.dumps(list(map(_as_sent, with_text_arguments(self._with_system(messages)))), ensure_ascii=False)


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


class EndpointTokenize(Operator):
    """Adds `prompt_ids` without any, since the server has the tokenizer: the graph is that of a local model.

    A text for `model.api=completions` in which a row has what looks like the name of a control token is cut within it,
    and tokenized in pieces by servers that do so (`/tokenize`): then no name is left. Others are given the text.
    """

    title = "Tokenize"
    keeps_rows = True

    def __init__(self, model: ModelSettings, ids_column: str | None = None) -> None:
        if ids_column is not None:
            raise ConfigError(f"ids_column={ids_column}: a server is given texts or messages, no token ids")
        assert isinstance(model, EndpointSettings)
        self._model = model

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, PROMPT_TEXT.name, [pa.string()])
        self._has_literals = PROMPT_LITERALS.name in schema.names
        self._schema = add_columns(schema, PROMPT_IDS)
        return self._schema

    def open(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def process(self, batch: Batch) -> Iterable[Output]:
        data = batch.data
        literals = data.column(PROMPT_LITERALS.name).to_pylist() if self._has_literals else [None] * data.num_rows
        ids: list[list[int] | None] = [None] * data.num_rows
        failed: dict[int, str] = {}
        notes: list[tuple[int, str]] = []
        for i, places in enumerate(literals):
            if places:
                try:
                    ids[i] = self._ids(data.column(PROMPT_TEXT.name)[i].as_py(), places)
                    notes.append((data.column(ROW.name)[i].as_py(), LIKE_NAMES if ids[i] is None else HAS_NAMES))
                except Unusable as error:
                    failed[i] = NOT_CUT.format(error)
        kept = [i for i in range(data.num_rows) if i not in failed]
        if failed:
            yield batch.reject(list(failed), list(failed.values()))
            data = data.take(pa.array(kept, pa.int64()))
        column = pa.array([ids[i] for i in kept], PROMPT_IDS.type)
        yield batch.with_data(pa.record_batch([*data.columns, column], schema=self._schema), told=notes)

    def _ids(self, text: str, places: Sequence[int]) -> list[int] | None:
        """Return the ids of a text that is cut behind each of `places`, by the server; None if it has no such API."""
        server = server_of(self._runtime, self._model)
        if server.settings.dialect not in TOKENIZES:
            return None
        ids: list[int] = []
        for start, end in itertools.pairwise([0, *(place + 1 for place in places), len(text)]):
            body = json.dumps(TOKENIZES[server.settings.dialect](server.settings.name, text[start:end], not ids))
            request = Request(self, "/../tokenize", body.encode(), _tokens, secrets=lambda: [text], optional=True)
            ids += server.endpoint.ask(request, lambda: self._runtime.cancelled)
        return ids


def _tokens(body: Any) -> list[int]:
    tokens = body.get("tokens") if isinstance(body, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise Unusable("the server's answer to /tokenize has no `tokens`")
    return tokens
