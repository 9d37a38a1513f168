"""AsksByBatch: the base of operators that ask a server about the rows of a batch, and wait for all answers."""

from __future__ import annotations

import json
import queue
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from operators.endpoint.api.dialects import require_path
from operators.endpoint.api.usage import read_usage
from operators.endpoint.connection.request import Request
from operators.endpoint.estimate import forecast_of
from operators.endpoint.metrics import PAID, register_paid, usage_lines
from operators.endpoint.render import LIKE, LIKE_NAMES
from operators.endpoint.rows import quoted_texts
from operators.endpoint.server import server_of
from operators.generation.wiring import shared_store
from operators.rows.row_condition import Where, passed_by
from operators.rows.token_lists import literals_of, rows_with_names
from operators.scoring.stored_answers import Answer, StoredAnswers
from operators.settings import ModelSettings, StoreSettings
from operators.settings.endpoint import AUTO, EndpointSettings
from operators.settings.model import TEXT
from pipeline.api.errors import Cancelled, ConfigError
from pipeline.api.forecast import Forecast, Task
from pipeline.api.protocols import BaseOperator, Runtime
from pipeline.api.records import ROW, Batch, Output

Question = tuple[Any, ...]
"""What a row asks, in a subclass's own shape."""
_TICK_S = 0.1


class AsksByBatch(BaseOperator):
    """Base of operators that ask a server about the rows of a batch.

    Equal questions of a batch are asked once, and answers are kept in the completion store.

    Args:
        model: an EndpointSettings.
        columns: with the texts that are sent.
        store: the config group of that name.
        where: rows to ask about; see Where.

    Raises:
        ConfigError: `model.api` is not `api`.
    """

    twice = False  # an answer is paid for
    api: ClassVar[str]
    """The `model.api` that the operator needs."""
    together: ClassVar[int] = 1
    """Questions of a request."""
    kind: ClassVar[str] = "<f4"
    """The type of the numbers in answers, of NumPy."""

    def __init__(
        self, model: ModelSettings, columns: Sequence[str], store: StoreSettings | None, where: str | None = None
    ) -> None:
        assert isinstance(model, EndpointSettings)
        if model.api != self.api:
            raise ConfigError(f"{self.title} with a server needs model.api={self.api}; it is {model.api}")
        if model.dialect != AUTO:
            require_path(self.title, model.dialect)
        self._model = model
        self._columns = columns
        self._store = store or StoreSettings()
        self._where = Where(where)
        self._schema = pa.schema([])

    @abstractmethod
    def _questions(self, data: pa.RecordBatch) -> list[Question | str]:
        """Return what each row asks, or why it asks nothing."""

    @abstractmethod
    def _body(self, questions: Sequence[Question]) -> Mapping[str, Any]:
        """Return the body of a request with `questions`, of which there are `together` at most."""

    @abstractmethod
    def _read(self, body: Any, questions: Sequence[Question]) -> Iterable[Sequence[Sequence[float]]]:
        """Read the answer to each of `questions`: rows of numbers. Raises Unusable."""

    @abstractmethod
    def _arrays(self, questions: Sequence[Question], answers: Sequence[Answer]) -> list[pa.Array]:
        """Return the new columns."""

    def open(self, runtime: Runtime) -> None:
        self._runtime = runtime
        server = server_of(runtime, self._model)
        self._endpoint, self._settings = server.endpoint, server.settings
        self._path = require_path(self.title, server.settings.dialect)
        self._paid = dict.fromkeys(PAID, 0)
        register_paid(runtime, self._paid, self._settings)
        identity = server.identity(shared_store(runtime, self._store), runtime)
        self._stored = StoredAnswers(runtime, self._store, self.kind, identity, self._path)

    def process(self, batch: Batch) -> Iterable[Output]:
        batch, others, beyond = self._where.split(batch)
        yield from beyond
        if others.num_rows:
            yield passed_by(others, others.data.schema.names, self._schema)
        questions = self._questions(batch.data)
        asked = [question for question in questions if not isinstance(question, str)]
        answers = iter(self._answers(asked))
        found = [question if isinstance(question, str) else next(answers) for question in questions]
        failed = {i: why for i, why in enumerate(found) if isinstance(why, str)}
        if failed:
            yield batch.reject(list(failed), list(failed.values()))
        kept = {i: answer for i, answer in enumerate(found) if not isinstance(answer, str)}
        if kept:
            rows = batch.data.take(pa.array(list(kept), pa.int64()))
            columns = self._arrays([q for i in kept if not isinstance(q := questions[i], str)], list(kept.values()))
            yield batch.with_data(
                pa.record_batch([*rows.columns, *columns], schema=self._schema), told=self._told(rows)
            )

    def _told(self, rows: pa.RecordBatch) -> list[tuple[int, str]]:
        """Return what is told of rows with what a server may read as control tokens."""
        is_text = self._model.special_tokens_in_text == TEXT
        found = set(rows_with_names(rows, self._columns, LIKE.has_name) if is_text else ())
        for literals in (literals_of(rows, name) for name in self._columns):
            found |= {i for i, places in enumerate(literals.to_pylist() if literals is not None else ()) if places}
        return [(rows.column(ROW.name)[i].as_py(), LIKE_NAMES) for i in sorted(found)]

    def forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        def of_own(own: Sequence[Batch], part: Task) -> Forecast:
            if not own:
                return Forecast(part.rows)
            self._store = StoreSettings(enabled=False)  # a dry run writes nothing, and times what is answered
            self.open(runtime)
            many = self._model.concurrency if isinstance(self._model.concurrency, int) else None
            price = None if self._model.price_per_million is None else self._model.cost
            return forecast_of(self.process, own, part, self._token_counts, None, many, price)

        names = batches[0].data.schema.names
        return self._where.forecast(batches, task, of_own, lambda others: passed_by(others, names, self._schema))

    def _token_counts(self, made: Sequence[Batch]) -> tuple[list[float], list[float]]:
        rows = sum(batch.num_rows for batch in made)
        prompt, completion = self._paid["paid_prompt_tokens"], self._paid["paid_completion_tokens"]
        return ([prompt / rows], [completion / rows]) if rows else ([], [])

    def report(self, directory: Path, node: str) -> Iterable[str]:
        return usage_lines(node, directory)

    def _answers(self, questions: Sequence[Question]) -> list[Answer | str]:
        """Return the answer to each question, from the store or from the server; or why there is none."""
        keys = [self._stored.key([self._sent([question])]) for question in questions]
        found: dict[bytes, Answer | str] = dict(self._stored.find(keys))
        new = {key: question for key, question in zip(keys, questions, strict=True) if key not in found}
        items = list(new.items())
        answered: queue.SimpleQueue[tuple[list[bytes], Request]] = queue.SimpleQueue()
        groups = [items[at : at + self.together] for at in range(0, len(items), self.together)]
        self._endpoint.submit([self._request(group, answered) for group in groups])
        left = len(groups)
        try:
            while left:
                of, request = self._next(answered)
                left -= 1
                if request.error is None:
                    found |= dict(zip(of, request.result[0], strict=True))
                elif len(of) > 1:  # one question may be at fault
                    left += len(of)
                    self._endpoint.submit([self._request([(key, new[key])], answered) for key in of])
                else:
                    found[of[0]] = request.error
        except BaseException:
            self._endpoint.leave(self)
            raise
        return [found[key] for key in keys]

    def _whole_body(self, questions: Sequence[Question]) -> dict[str, Any]:
        extra = self._settings.extra_body or {}
        body = {"model": self._settings.name, **self._body(questions), **extra}
        return {name: value for name, value in body.items() if value is not None}

    def _sent(self, questions: Sequence[Question]) -> bytes:
        return json.dumps(self._whole_body(questions), ensure_ascii=False).encode()

    def _request(
        self, group: Sequence[tuple[bytes, Question]], answered: queue.SimpleQueue[tuple[list[bytes], Request]]
    ) -> Request:
        keys, questions = [key for key, _ in group], [question for _, question in group]
        sent = self._sent(questions)

        def done(request: Request) -> None:
            """Take an answer, in the endpoint's thread: it is kept also if the run ends before it is looked at."""
            try:
                if request.error is None:
                    answers, usage = request.result
                    self._stored.keep(dict(zip(keys, answers, strict=True)))
                    self._count(usage)
            finally:
                answered.put((keys, request))

        return Request(
            self,
            self._path,
            sent,
            partial(self._result, questions=questions),
            done,
            tokens=len(sent) // 3,
            secrets=lambda: quoted_texts(self._whole_body(questions)),
            is_group=len(group) > 1,
        )

    def _result(self, body: Any, questions: Sequence[Question]) -> tuple[list[Answer], Mapping[str, int | None]]:
        answers = [tuple(np.asarray(row, self.kind) for row in rows) for rows in self._read(body, questions)]
        return answers, read_usage(body if isinstance(body, dict) else {})

    def _next(self, answered: queue.SimpleQueue[tuple[list[bytes], Request]]) -> tuple[list[bytes], Request]:
        while True:
            try:
                found = answered.get(timeout=_TICK_S)
            except queue.Empty:
                self._endpoint.check()
                if self._runtime.cancelled:
                    raise Cancelled from None
                continue
            self._endpoint.check()
            return found

    def _count(self, usage: Mapping[str, int | None]) -> None:
        for name, kind in PAID.items():
            self._paid[name] += usage[kind] or 0
        self._runtime.meter.tokens_in += usage["prompt_tokens"] or 0
        self._runtime.meter.cost = self._settings.cost(*self._paid.values())
