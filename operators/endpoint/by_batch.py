"""AsksByBatch: the base of operators that ask a server about the rows of a batch, and wait for all answers."""

from __future__ import annotations

import json
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
from operators.endpoint.metrics import Paid, usage_lines
from operators.endpoint.render import LIKE, LIKE_NAMES
from operators.endpoint.rows import quoted_texts
from operators.endpoint.server import server_of
from operators.generation.adapters import adapters_of_node
from operators.generation.wiring import shared_store
from operators.rows.token_lists import literals_of, rows_with_names
from operators.scoring.answers_rows import Answer, AnswersRows, StoredAnswers
from operators.settings import DataSettings, ModelSettings, StoreSettings
from operators.settings.endpoint import AUTO, EndpointSettings
from operators.settings.model import TEXT
from pipeline.api import ROW, Batch, Concludes, ConfigError, Forecast, Forecasts, Runtime, Task, require_column

Question = tuple[Any, ...]
"""What a row asks, in a subclass's own shape."""
Group = Sequence[tuple[bytes, Question]]
"""Questions of a request, and their keys."""


class AsksByBatch(AnswersRows, Forecasts, Concludes):
    """Base of operators that ask a server about the rows of a batch.

    Args:
        model: an EndpointSettings.
        columns, store, where: see AnswersRows.

    Raises:
        ConfigError: `model.api` is not `api`.
    """

    api: ClassVar[str]
    """The `model.api` that the operator needs."""
    together: ClassVar[int] = 1
    """Questions of a request."""
    adapter: Any = None
    """The adapter of the node, by the name that the server has for it: it stands in the place of the model's."""
    data: DataSettings | None = None
    told_by_fingerprint = ("data",)  # it changes no answer

    def __init__(
        self, model: ModelSettings, columns: Sequence[str], store: StoreSettings | None, where: str | None = None
    ) -> None:
        assert isinstance(model, EndpointSettings)
        if model.api != self.api:
            raise ConfigError(f"{self.title} with a server needs model.api={self.api}; it is {model.api}")
        if model.dialect != AUTO:
            require_path(self.title, model.dialect)
        super().__init__(columns, store, where)
        self._model = model
        self._adapters = adapters_of_node(self.adapter, self.data, None)

    def _check(self, schema: pa.Schema) -> None:
        for name in self._columns:
            require_column(schema, name, [pa.string()])

    @abstractmethod
    def _body(self, questions: Sequence[Question]) -> Mapping[str, Any]:
        """Return the body of a request with `questions`, of which there are `together` at most."""

    @abstractmethod
    def _read(self, body: Any, questions: Sequence[Question]) -> Iterable[Sequence[Sequence[float]]]:
        """Read the answer to each of `questions`: rows of numbers. Raises Unusable."""

    def open(self, runtime: Runtime) -> None:
        self._runtime = runtime
        server = server_of(runtime, self._model)
        self._endpoint, self._settings = server.endpoint, server.settings
        if self._adapters:
            self._endpoint.attempts.model = None  # answers name the adapter
        self._path = require_path(self.title, server.settings.dialect)
        self._paid = Paid(runtime, server.settings)
        identity = server.identity(shared_store(runtime, self._store), runtime)
        self._stored = StoredAnswers(runtime, self._store, self.kind, identity, self._path)

    def _told(self, rows: pa.RecordBatch) -> list[tuple[int, str]]:
        is_text = self._model.special_tokens_in_text == TEXT
        matches = set(rows_with_names(rows, self._columns, LIKE.has_name) if is_text else ())
        for literals in (literals_of(rows, name) for name in self._columns):
            matches |= {i for i, places in enumerate(literals.to_pylist() if literals is not None else ()) if places}
        return [(rows.column(ROW.name)[i].as_py(), LIKE_NAMES) for i in sorted(matches)]

    def forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        def of_own(chosen: Sequence[Batch], part: Task) -> Forecast:
            if not chosen:
                return Forecast(part.rows)
            self._store = StoreSettings(enabled=False)  # a dry run writes nothing, and times what is answered
            self.open(runtime)
            return forecast_of(self.process, chosen, part, self._token_counts, None, self._model)

        return self._where.forecast(batches, task, of_own, self._kept, self._schema)

    def _token_counts(self, output: Sequence[Batch]) -> tuple[list[float], list[float]]:
        rows = sum(batch.num_rows for batch in output)
        prompt, _, completion = self._paid.tokens
        return ([prompt / rows], [completion / rows]) if rows else ([], [])

    def report(self, directory: Path, node: str) -> Iterable[str]:
        return usage_lines(node, directory)

    def _key(self, text: Question) -> bytes:
        return self._stored.key([self._sent([text])])

    def _read_new(self, texts: Mapping[bytes, Question]) -> dict[bytes, Answer | str]:
        items = list(texts.items())
        groups = [items[at : at + self.together] for at in range(0, len(items), self.together)]
        groups_of = {self._request(group): group for group in groups}
        requests = list(groups_of)
        answers: dict[bytes, Answer | str] = {}
        try:
            for request in self._endpoint.each(requests, lambda: self._runtime.cancelled):
                group = groups_of.pop(request)
                if request.error is None:
                    answers |= zip([key for key, _ in group], request.result[0], strict=True)
                elif len(group) > 1:  # one question may be at fault
                    alone = {self._request([each]): [each] for each in group}
                    groups_of |= alone
                    requests += alone
                else:
                    answers[group[0][0]] = request.error
        except BaseException:
            self._endpoint.leave(self)
            raise
        return answers

    def _whole_body(self, questions: Sequence[Question]) -> dict[str, Any]:
        extra = self._settings.extra_body or {}
        body = {"model": self._settings.name, **self._body(questions), **extra}
        if self._adapters:
            body["model"] = self._adapters[0]
        return {name: value for name, value in body.items() if value is not None}

    def _sent(self, questions: Sequence[Question]) -> bytes:
        return json.dumps(self._whole_body(questions), ensure_ascii=False).encode()

    def _request(self, group: Group) -> Request:
        questions = [question for _, question in group]
        sent = self._sent(questions)

        def done(request: Request) -> None:
            """Take an answer, in the endpoint's thread: it is kept also if the run ends before it is looked at."""
            if request.error is None:
                answers, usage = request.result
                self._stored.keep({key: answer for (key, _), answer in zip(group, answers, strict=True)})
                self._paid.add(usage["prompt_tokens"], usage["cached_tokens"], usage["completion_tokens"])
                self._runtime.meter.tokens_in += usage["prompt_tokens"] or 0

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
        return answers, read_usage(body)
