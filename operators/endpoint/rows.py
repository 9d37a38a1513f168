"""The rows of a node at a server: their requests, and their answers in the completion store, so that none is paid for
twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from operators.endpoint.api.answers import Answer, from_json, read_answer, to_json
from operators.endpoint.api.bodies import Bodies
from operators.endpoint.api.checks import Unusable
from operators.endpoint.api.images import IMAGE_TOKENS, BodyImages
from operators.endpoint.connection.request import Request
from operators.generation.adapters import RowAdapters
from operators.generation.journal import StoredCompletion
from operators.generation.requests import BatchRow, RowMaker
from operators.generation.seeds import RowSeeds, no_seed
from operators.generation.store_lookup import RowLookup
from operators.images.columns import PROMPT_IMAGES, has_prompt_images
from operators.images.read import BadImage
from operators.prompts.arguments import TemplateArguments
from operators.prompts.messages import NoPrompt
from operators.rows.token_lists import PROMPT_IDS, PROMPT_TEXT
from operators.settings import SamplingSettings
from pipeline.api.errors import HALF_A_CHARACTER
from pipeline.api.records import python_values

PATHS: Mapping[str, str] = {"chat": "/chat/completions", "completions": "/completions"}
STREAM = "stream"
NOT_STREAMED = b', "stream": false}'
"""Ends a body: some servers stream unless they are asked not to. It is no part of a row's key."""
CHARACTERS_PER_TOKEN = 3
"""An estimate, for limits of tokens per minute; what an answer says it used takes its place."""

_ENCODED = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(slots=True, eq=False)
class EndpointRow:
    """A row at a server.

    Args:
        handle: its position.
        key: equal for rows with the same answer.
        seed: of the row; recorded, and sent where the server takes one.
        request: None once it is answered from the store or by an identical one.
    """

    handle: BatchRow
    key: bytes
    seed: int
    max_tokens: int
    request: Request | None
    answer: Answer | None = None
    error: str | None = None

    @property
    def chunk(self) -> int:
        """The chunk of its batch."""
        return self.handle.batch.chunk

    @property
    def finish_reason(self) -> str | None:
        """That of its answer; None without one."""
        return None if self.answer is None else self.answer.finish_reason

    @property
    def identity(self) -> bytes:
        """Its key."""
        return self.key

    @property
    def own_error(self) -> bool:
        """True if its images could not be had."""
        return self.request is not None and self.request.is_unsent

    def finish_like(self, other: EndpointRow) -> None:
        """Take the answer of an identical row."""
        self.answer, self.error, self.request = other.answer, other.error, None


class EndpointRowMaker(RowMaker[EndpointRow]):
    """Makes the rows of a node at a server.

    Args:
        sampling, seeds: see RowMaker.
        api: chat or completions.
        bodies: makes the body of a request.
        arguments: gives the tools and the template arguments of a row, from `columns`.
        identity: of the model at the server, for the keys.
        adapters: says which adapter each row asks for, by a name in the place of the model's.
    """

    def __init__(
        self,
        sampling: SamplingSettings,
        seeds: RowSeeds,
        api: str,
        bodies: Bodies,
        arguments: TemplateArguments,
        columns: Iterable[str],
        identity: str,
        adapters: RowAdapters | None = None,
    ) -> None:
        super().__init__(sampling, seeds, adapters)
        self._api = api
        self._bodies = bodies
        self._arguments = arguments
        self._schema_column = sampling.structured.json_schema_column
        needed = [*columns, *([self._schema_column] if self._schema_column else [])]
        self._columns = list(dict.fromkeys([*bodies.columns, *needed]))
        self._max_tokens = sampling.max_tokens
        self._base = hashlib.blake2b(f"{identity}|{api}".encode(), digest_size=16)

    def _asked(self, data: pa.RecordBatch) -> tuple[list[Any], list[dict[str, Any]]]:
        prompts = data.column(PROMPT_TEXT.name).to_pylist()
        if self._api == "completions" and PROMPT_IDS.name in data.schema.names:
            ids = data.column(PROMPT_IDS.name).to_pylist()
            prompts = [text if tokens is None else tokens for text, tokens in zip(prompts, ids, strict=True)]
        images = [PROMPT_IMAGES.name] if has_prompt_images(data.schema) else []
        values = {name: python_values(data.column(name)) for name in [*self._columns, *images]}
        return prompts, [{name: column[i] for name, column in values.items()} for i in range(data.num_rows)]

    def _row(
        self, place: BatchRow, prompt: str | list[int] | None, values: dict[str, Any], seed: int | None
    ) -> EndpointRow | str:
        if seed is None:
            return no_seed(place.batch.data, place.index)
        body = self._body(prompt, values, seed)
        if isinstance(body, str):
            return body
        if place.adapters:
            body["model"] = place.adapters[0]
        try:
            sent = _ENCODED(body).encode()
        except UnicodeEncodeError:
            return f"column '{PROMPT_TEXT.name}' has {HALF_A_CHARACTER}"
        key = self._base.copy()
        key.update(sent if body.get("temperature") == 0 else seed.to_bytes(8, "little") + sent)
        filled, image_tokens = None, 0
        if images := values.get(PROMPT_IMAGES.name):
            try:
                of_row = BodyImages(images, place.batch.data.schema.field(PROMPT_IMAGES.name))
            except BadImage as error:
                return str(error)
            key.update(of_row.digest)
            filled, image_tokens = of_row.body, IMAGE_TOKENS * len(images)
        most = body.get("max_completion_tokens", body.get("max_tokens", self._max_tokens))
        request = Request(
            self,
            PATHS[self._api],
            sent if self._bodies.names(STREAM) else sent[:-1] + NOT_STREAMED,
            lambda answer: read_answer(answer, self._api),
            tokens=len(sent) // CHARACTERS_PER_TOKEN + image_tokens + most,
            secrets=lambda: quoted_texts(body),
            tokens_of=_tokens_of,
            filled=filled,
        )
        return EndpointRow(place, key.digest(), seed, most, request)

    def _body(self, prompt: str | list[int] | None, values: Mapping[str, Any], seed: int) -> dict[str, Any] | str:
        """Return the body for a row, or why there is none."""
        if not prompt:
            return f"column '{PROMPT_TEXT.name}' is {'null' if prompt is None else 'empty'}"
        try:
            arguments = self._arguments.of(values)
            tools = arguments.pop("tools", None)
            text = json.loads(prompt) if self._api == "chat" and isinstance(prompt, str) else prompt
            schema = None if self._schema_column is None else values[self._schema_column]
            return self._bodies.of(text, values, seed=seed, tools=tools, schema=schema, kwargs=arguments)
        except NoPrompt as error:
            return str(error)
        except (ValueError, RecursionError) as error:
            return f"column '{PROMPT_TEXT.name}' holds no messages as JSON: {error}"


class AnswerLookup(RowLookup[EndpointRow]):
    """Answers rows from a store, and stores the answers to others. Those that cannot be read are asked for again:
    another version wrote them.

    The key of an answer covers the model as the server describes it, the whole body of the request and the row's seed.
    """

    def _made(self, row: EndpointRow) -> StoredCompletion | None:
        if row.answer is None:
            return None
        return StoredCompletion([], to_json(row.answer), row.answer.finish_reason, None, 0, self._runtime.run_id)

    def _finish(self, row: EndpointRow, stored: StoredCompletion) -> str | None:
        try:
            row.answer, row.request = from_json(stored.text), None
        except Unusable:
            return "missed_retry"
        return None


def _tokens_of(answer: Answer) -> tuple[int, int]:
    return (answer.prompt_tokens or 0) + (answer.completion_tokens or 0), answer.completion_tokens or 0


QUOTED = ("messages", "prompt", "input", "query", "documents", "tools")
"""Keys of a body whose texts are of a row: a server's message may name the model and its settings."""


def quoted_texts(body: Any) -> list[str]:
    """Return the texts of rows in a body, which no message may quote."""
    return [text for key in QUOTED for text in texts_in(body.get(key))]


def texts_in(value: Any) -> Iterable[str]:
    """Yield the texts inside JSON, but for roles and types."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from () if key in ("role", "type") else texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_in(inner)
