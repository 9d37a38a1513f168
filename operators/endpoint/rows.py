"""The rows of a node at a server: requests from batches, rejects, and identical requests, which are sent once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from operators.endpoint.api.answers import Answer, read_answer
from operators.endpoint.api.bodies import Bodies
from operators.endpoint.connection.request import Request
from operators.generation.requests import Samples
from operators.generation.seeds import RowSeeds, no_seed
from operators.prompts.arguments import TemplateArguments
from operators.prompts.messages import NoPrompt
from operators.prompts.rendering import PROMPT_TEXT
from operators.rows.token_lists import PROMPT_IDS
from operators.settings import SamplingSettings
from pipeline.api.errors import HALF_A_CHARACTER
from pipeline.api.records import ROW, Batch, Rejects, python_values

PATHS: Mapping[str, str] = {"chat": "/chat/completions", "completions": "/completions"}
STREAM = "stream"
NOT_STREAMED = b', "stream": false}'
"""Ends a body: some servers stream unless they are asked not to. It is no part of a row's key."""
CHARACTERS_PER_TOKEN = 3
"""An estimate, for limits of tokens per minute; what an answer says it used takes its place."""

_ENCODED = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(slots=True, eq=False)
class EndpointRow:
    """A row at a server: row `index` of `batch`, number `row` of the source.

    Args:
        key: equal for rows with the same answer.
        seed: of the row; recorded, and sent where the server takes one.
        request: None once it is answered from the store or by an identical one.
    """

    batch: Batch
    index: int
    row: int
    key: bytes
    seed: int
    max_tokens: int
    request: Request | None
    answer: Answer | None = None
    error: str | None = None

    @property
    def chunk(self) -> int:
        """The chunk of its batch."""
        return self.batch.chunk


class RowMaker:
    """Makes the rows of a node.

    Args:
        api: chat or completions.
        bodies: makes the body of a request.
        sampling: for the number of samples and the column of schemas.
        seeds: makes the seed of each row.
        arguments: gives the tools and the template arguments of a row.
        identity: of the model at the server, for the keys.
        done: called in the endpoint's thread for each row that is answered or given up.
    """

    def __init__(
        self,
        api: str,
        bodies: Bodies,
        sampling: SamplingSettings,
        seeds: RowSeeds,
        arguments: TemplateArguments,
        columns: Iterable[str],
        identity: str,
        done: Callable[[EndpointRow], None],
    ) -> None:
        self._api = api
        self._bodies = bodies
        self._samples = Samples(sampling)
        self._seeds = seeds
        self._arguments = arguments
        self._schema_column = sampling.structured.json_schema_column
        needed = [*columns, *([self._schema_column] if self._schema_column else [])]
        self._columns = list(dict.fromkeys([*bodies.columns, *needed]))
        self._max_tokens = sampling.max_tokens
        self._base = hashlib.blake2b(f"{identity}|{api}".encode(), digest_size=16)
        self._done = done

    def of(self, batch: Batch) -> tuple[list[EndpointRow], list[Rejects]]:
        """Return the rows of `batch`, `sampling.n` each, and rejects for those that cannot be asked."""
        expanded, refused = self._samples.of(batch)
        rejects = [batch.reject(list(refused), list(refused.values()))] if refused else []
        data = expanded.data
        prompts = data.column(PROMPT_TEXT.name).to_pylist()
        if self._api == "completions" and PROMPT_IDS.name in data.schema.names:
            ids = data.column(PROMPT_IDS.name).to_pylist()
            prompts = [text if tokens is None else tokens for text, tokens in zip(prompts, ids, strict=True)]
        values = {name: python_values(data.column(name)) for name in self._columns}
        numbers = data.column(ROW.name).to_pylist()
        rows, refused = [], {}
        for i, seed in enumerate(self._seeds.of(data)):
            if seed is None:
                refused[i] = no_seed(data, i)
                continue
            own = {name: column[i] for name, column in values.items()}
            made = self._body(prompts[i], own, seed)
            if isinstance(made, str):
                refused[i] = made
                continue
            try:
                rows.append(self._row(expanded, i, numbers[i], seed, made))
            except UnicodeEncodeError:
                refused[i] = f"column '{PROMPT_TEXT.name}' has {HALF_A_CHARACTER}"
        if refused:
            rejects.append(expanded.reject(list(refused), list(refused.values())))
        return rows, rejects

    def _body(self, prompt: str | list[int] | None, values: Mapping[str, Any], seed: int) -> dict[str, Any] | str:
        """Return the body for a row, or why there is none."""
        if not prompt:
            return f"column '{PROMPT_TEXT.name}' is {'null' if prompt is None else 'empty'}"
        try:
            given = self._arguments.of(values)
            tools = given.pop("tools", None)
            text = json.loads(prompt) if self._api == "chat" and isinstance(prompt, str) else prompt
            schema = None if self._schema_column is None else values[self._schema_column]
            return self._bodies.of(text, values, seed=seed, tools=tools, schema=schema, kwargs=given)
        except NoPrompt as error:
            return str(error)
        except (ValueError, RecursionError) as error:
            return f"column '{PROMPT_TEXT.name}' holds no messages as JSON: {error}"

    def _row(self, batch: Batch, index: int, number: int, seed: int, body: dict[str, Any]) -> EndpointRow:
        sent = _ENCODED(body).encode()
        key = self._base.copy()
        key.update(sent if body.get("temperature") == 0 else seed.to_bytes(8, "little") + sent)
        most = body.get("max_completion_tokens", body.get("max_tokens", self._max_tokens))
        row = EndpointRow(batch, index, number, key.digest(), seed, most, None)
        row.request = Request(
            self,
            PATHS[self._api],
            sent if self._bodies.names(STREAM) else sent[:-1] + NOT_STREAMED,
            lambda answer: read_answer(answer, self._api),
            lambda request: self._answered(row, request),
            tokens=len(sent) // CHARACTERS_PER_TOKEN + most,
            secrets=lambda: quoted_texts(body),
            tokens_of=_tokens_of,
        )
        return row

    def _answered(self, row: EndpointRow, request: Request) -> None:
        row.answer, row.error = request.result, request.error
        self._done(row)


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


class Identical:
    """Rows in flight by their key: identical ones wait for the first, and share its answer.

    Args:
        enabled: false sends each row.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._others: dict[bytes, list[EndpointRow]] = {}
        self.waiting = 0
        """Rows that wait for an identical one."""
        self.served = 0
        """Rows that shared the answer of another."""

    def joins(self, row: EndpointRow) -> bool:
        """Let `row` wait for an identical one, and return True; without one, let later rows wait for `row`."""
        if not self._enabled:
            return False
        if (others := self._others.get(row.key)) is None:
            self._others[row.key] = []
            return False
        others.append(row)
        self.waiting += 1
        return True

    def of(self, row: EndpointRow) -> list[EndpointRow]:
        """Give the answer of `row` to the rows that waited for it, and return them."""
        others = self._others.pop(row.key, [])
        for other in others:
            other.answer, other.error, other.request = row.answer, row.error, None
        self.waiting -= len(others)
        self.served += len(others)
        return others
