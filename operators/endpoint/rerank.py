"""Rerank for a server: asks it how well documents answer a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from operators.endpoint.api.usage import read_usage
from operators.endpoint.api.vectors import read_scores
from operators.endpoint.by_batch import AsksByBatch, Question
from operators.scoring.columns import RERANK, named, query_and_documents, ranked, rerank_arrays
from operators.scoring.stored_answers import Answer
from operators.settings import ModelSettings, StoreSettings
from operators.settings.checks import check
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError
from pipeline.api.records import add_columns, require_column


class EndpointRerank(AsksByBatch):
    """Orders the documents of a row by a server's scores; operators.rerank.Rerank has the arguments."""

    title = "Rerank"
    api = "rerank"
    kind = "<f8"

    def __init__(
        self,
        model: ModelSettings,
        runtime: EngineSettings,
        query_column: str = "query",
        documents_column: str = "documents",
        top_n: int | None = None,
        normalize: bool = True,
        truncate: bool = False,
        as_: str | None = None,
        store: StoreSettings | None = None,
    ) -> None:
        check(top_n is None or top_n >= 1, "top_n", top_n, "1 or more, or null for all documents")
        super().__init__(model, (query_column, documents_column), store)
        for key, given in (("normalize=false", not normalize), ("truncate=true", truncate)):
            if given:
                raise ConfigError(f"{key} is up to the server; leave it out, or give its own keys in model.extra_body")
        self._top_n = top_n
        self._fields = named(RERANK, as_)

    def plan(self, schema: pa.Schema) -> pa.Schema:
        for name, type_ in zip(self._columns, (pa.string(), pa.list_(pa.string())), strict=True):
            require_column(schema, name, [type_])
        self._schema = add_columns(schema, *self._fields)
        return self._schema

    def _questions(self, data: pa.RecordBatch) -> list[Question | str]:
        rows = zip(*(data.column(name).to_pylist() for name in self._columns), strict=True)
        query, documents = self._columns
        return [query_and_documents(row, (query, documents)) for row in rows]

    def _body(self, questions: Sequence[Question]) -> Mapping[str, Any]:
        ((query, documents),) = questions
        return {"query": query, "documents": documents}

    def _read(self, body: Any, questions: Sequence[Question]) -> list[list[list[float]]]:
        ((_, documents),) = questions
        scores = read_scores(body, len(documents))
        tokens = read_usage(body)["prompt_tokens"] if isinstance(body, dict) else None
        return [[scores, [] if tokens is None else [tokens]]]

    def _arrays(self, questions: Sequence[Question], answers: Sequence[Answer]) -> list[pa.Array]:
        return rerank_arrays(
            [
                ranked(scores.tolist(), documents, self._top_n, int(tokens[0]) if len(tokens) else None)
                for (_, documents), (scores, tokens) in zip(questions, answers, strict=True)
            ]
        )
