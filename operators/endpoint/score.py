"""Score for a server: asks it for the echo of texts with their log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from operators.endpoint.api.echo import read_echo
from operators.endpoint.by_batch import AsksByBatch, Question
from operators.scoring.columns import SCORE, named, score_arrays
from operators.scoring.stored_answers import Answer
from operators.settings import ModelSettings, StoreSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError
from pipeline.api.records import add_columns, require_column


class EndpointScore(AsksByBatch):
    """Adds the log-probabilities of texts from a server; operators.score.Score has the arguments. One token is
    generated after each text, since not all servers take less."""

    title = "Score"
    api = "completions"

    def __init__(
        self,
        model: ModelSettings,
        runtime: EngineSettings,
        text_column: str = "text",
        given_column: str | None = None,
        joint: bool = False,
        as_: str | None = None,
        store: StoreSettings | None = None,
    ) -> None:
        super().__init__(model, [n for n in (text_column, given_column) if n is not None], store)
        if joint != (given_column is not None):
            raise ConfigError(
                "a server tokenizes a text together with what comes before it: add joint=true"
                if given_column
                else "joint=true tokenizes a text together with what comes before it; add given_column"
            )
        self._text, self._given = text_column, given_column
        self._fields = named(SCORE, as_)

    def plan(self, schema: pa.Schema) -> pa.Schema:
        for name in (self._text, self._given):
            if name is not None:
                require_column(schema, name, [pa.string()])
        self._schema = add_columns(schema, *self._fields)
        return self._schema

    def _questions(self, data: pa.RecordBatch) -> list[Question | str]:
        texts = data.column(self._text).to_pylist()
        befores = [""] * len(texts) if self._given is None else data.column(self._given).to_pylist()
        return [self._question(*row) for row in zip(befores, texts, strict=True)]

    def _question(self, before: str | None, text: str | None) -> Question | str:
        if before is None or not text:
            name = self._given if before is None else self._text
            return f"column '{name}' is {'null' if None in (before, text) else 'empty; there is nothing to score'}"
        given = before.rstrip()
        return given, before[len(given) :] + text

    def _body(self, questions: Sequence[Question]) -> Mapping[str, Any]:
        ((given, text),) = questions
        return {"prompt": given + text, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}

    def _read(self, body: Any, questions: Sequence[Question]) -> list[list[list[float]]]:
        ((given, text),) = questions
        logprobs, is_greedy = read_echo(body, given, text)
        return [[logprobs, [is_greedy]]]

    def _arrays(self, questions: Sequence[Question], answers: Sequence[Answer]) -> list[pa.Array]:
        return score_arrays(answers)
