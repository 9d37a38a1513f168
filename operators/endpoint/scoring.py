"""Embed, Rerank, Score and Choose for a server: what they ask it, and what they make of its answers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from operators.endpoint.api.checks import Unusable
from operators.endpoint.api.echo import read_echo
from operators.endpoint.api.usage import read_usage
from operators.endpoint.api.vectors import read_scores, read_vectors
from operators.endpoint.by_batch import AsksByBatch, Question
from operators.scoring.answers_rows import Answer
from operators.scoring.arguments import ChooseArguments, EmbedArguments, RerankArguments, ScoreArguments
from operators.scoring.columns import (
    EMBEDDING,
    choice_arrays,
    chosen,
    named,
    query_and_documents,
    ranked,
    rerank_arrays,
    score_arrays,
)
from operators.settings.checks import check
from pipeline.api.errors import ConfigError
from pipeline.api.records import require_column


class EndpointEmbed(EmbedArguments, AsksByBatch):
    """Adds the vectors of texts from a server; operators.embed.Embed has the arguments. The length of the vectors is
    the server's, so the column has lists of any length, unless `dimensions` says it. That is sent; of a server that
    takes no notice of it the first numbers are kept."""

    title = "Embed"
    api = "embeddings"
    together = 16

    def __post_init__(self) -> None:
        AsksByBatch.__init__(self, self.model, [self.text_column], self.store, self.where)
        for key, is_given in (("pooling", self.pooling is not None), ("truncate", self.truncate)):
            if is_given:
                raise ConfigError(f"{key} is up to the server; leave it out, or give its own keys in model.extra_body")
        most = self.dimensions
        check(most is None or most >= 1, "dimensions", most, "1 or more, or null for all")
        self._fields = named([pa.field(EMBEDDING, pa.list_(pa.float32(), self.dimensions or -1))], self.as_)

    def _texts(self, data: pa.RecordBatch) -> list[Question | str]:
        return [
            (text,) if text else f"column '{self.text_column}' is {'null' if text is None else 'empty'}"
            for text in data.column(self.text_column).to_pylist()
        ]

    def _body(self, questions: Sequence[Question]) -> Mapping[str, Any]:
        return {"input": [text for (text,) in questions], "dimensions": self.dimensions}

    def _read(self, body: Any, questions: Sequence[Question]) -> list[list[list[float]]]:
        vectors = read_vectors(body, len(questions))
        if self.dimensions is not None and len(vectors[0]) < self.dimensions:
            raise Unusable(f"the embeddings have {len(vectors[0])} numbers, and dimensions is {self.dimensions}")
        return [[vector[: self.dimensions]] for vector in vectors]

    def _arrays(self, texts: Sequence[Question], answers: Sequence[Answer]) -> list[pa.Array]:
        vectors = [vector.astype(np.float64) for (vector,) in answers]
        lengths = [float(np.linalg.norm(vector)) or 1.0 if self.normalize else 1.0 for vector in vectors]
        scaled = [(vector / length).astype(np.float32) for vector, length in zip(vectors, lengths, strict=True)]
        return [pa.array(scaled, self._fields[0].type)]


class EndpointRerank(RerankArguments, AsksByBatch):
    """Orders the documents of a row by a server's scores; operators.rerank.Rerank has the arguments."""

    title = "Rerank"
    api = "rerank"
    kind = "<f8"

    def __post_init__(self) -> None:
        super().__post_init__()
        AsksByBatch.__init__(self, self.model, (self.query_column, self.documents_column), self.store, self.where)
        for key, is_given in (("normalize=false", not self.normalize), ("truncate=true", self.truncate)):
            if is_given:
                raise ConfigError(f"{key} is up to the server; leave it out, or give its own keys in model.extra_body")

    def _check(self, schema: pa.Schema) -> None:
        require_column(schema, self.query_column, [pa.string()])
        require_column(schema, self.documents_column, [pa.list_(pa.string())])

    def _texts(self, data: pa.RecordBatch) -> list[Question | str]:
        rows = zip(*(data.column(name).to_pylist() for name in self._columns), strict=True)
        return [query_and_documents(row, (self.query_column, self.documents_column)) for row in rows]

    def _body(self, questions: Sequence[Question]) -> Mapping[str, Any]:
        ((query, documents),) = questions
        return {"query": query, "documents": documents}

    def _read(self, body: Any, questions: Sequence[Question]) -> list[list[list[float]]]:
        ((_, documents),) = questions
        scores = read_scores(body, len(documents))
        tokens = read_usage(body)["prompt_tokens"]
        return [[scores, [] if tokens is None else [tokens]]]

    def _arrays(self, texts: Sequence[Question], answers: Sequence[Answer]) -> list[pa.Array]:
        return rerank_arrays(
            [
                ranked(scores.tolist(), documents, self.top_n, int(tokens[0]) if len(tokens) else None)
                for (_, documents), (scores, tokens) in zip(texts, answers, strict=True)
            ]
        )


class AsksEcho(AsksByBatch):
    """Base of operators that ask a server for the log-probabilities of a text behind another one. One token is
    generated after each text, since not all servers take less."""

    api = "completions"

    def _body(self, questions: Sequence[Question]) -> Mapping[str, Any]:
        ((context, text),) = questions
        return {"prompt": context + text, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}

    def _read(self, body: Any, questions: Sequence[Question]) -> list[list[list[float]]]:
        ((context, text),) = questions
        logprobs, is_greedy = read_echo(body, context, text)
        return [[logprobs, [is_greedy]]]

    def _echoed(self, before: str, text: str) -> Question:
        """Return what to ask of `text` behind `before`, whose white space at its end counts as the beginning of it."""
        context = before.rstrip()
        return context, before[len(context) :] + text


class EndpointScore(ScoreArguments, AsksEcho):
    """Adds the log-probabilities of texts from a server; operators.score.Score has the arguments."""

    title = "Score"

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = [name for name in (self.text_column, self.given_column) if name is not None]
        AsksByBatch.__init__(self, self.model, columns, self.store, self.where)
        if self.joint != (self.given_column is not None):
            raise ConfigError(
                "a server tokenizes a text together with what comes before it: add joint=true"
                if self.given_column
                else "joint=true tokenizes a text together with what comes before it; add given_column"
            )

    def _texts(self, data: pa.RecordBatch) -> list[Question | str]:
        texts = data.column(self.text_column).to_pylist()
        befores = [""] * len(texts) if self.given_column is None else data.column(self.given_column).to_pylist()
        return [self._question(*row) for row in zip(befores, texts, strict=True)]

    def _question(self, before: str | None, text: str | None) -> Question | str:
        if before is None or not text:
            name = self.given_column if before is None else self.text_column
            return f"column '{name}' is {'null' if None in (before, text) else 'empty; there is nothing to score'}"
        return self._echoed(before, text)

    def _arrays(self, texts: Sequence[Question], answers: Sequence[Answer]) -> list[pa.Array]:
        return score_arrays(answers)


class EndpointChoose(ChooseArguments, AsksEcho):
    """Chooses the likeliest option by the log-probabilities of a server; operators.choose.Choose has the arguments. An
    option is a request, and an entry of the store."""

    title = "Choose"

    def __post_init__(self) -> None:
        super().__post_init__()
        AsksByBatch.__init__(self, self.model, [self.question_column], self.store, self.where)
        if not self.joint:
            raise ConfigError("a server tokenizes an option together with its question: add joint=true")

    def _check(self, schema: pa.Schema) -> None:
        super()._check(schema)
        self._check_options(schema)

    def _texts(self, data: pa.RecordBatch) -> list[Question | str]:
        """Return of each row its options, and what is asked for each."""
        rows = zip(data.column(self.question_column).to_pylist(), self._options_of(data), strict=True)
        return [self._why_not(q, options) or (options, [self._echoed(q, o) for o in options]) for q, options in rows]

    def _answered(self, texts: Sequence[Question]) -> list[Answer | str]:
        of_options = iter(super()._answered([asked for _, questions in texts for asked in questions]))
        return [_sums(list(itertools.islice(of_options, len(questions)))) for _, questions in texts]

    def _arrays(self, texts: Sequence[Question], answers: Sequence[Answer]) -> list[pa.Array]:
        rows = zip(texts, answers, strict=True)
        return choice_arrays(
            [chosen(options, sums.tolist(), counts.tolist(), self.normalize) for (options, _), (sums, counts) in rows]
        )


def _sums(options: Sequence[Answer | str]) -> Answer | str:
    """Return of each option the log-probability, the sum over its tokens, and their number; or why there is none."""
    for option in options:
        if isinstance(option, str):
            return option
    logprobs = [option[0] for option in options if not isinstance(option, str)]
    sums = np.array([math.fsum(each.tolist()) for each in logprobs])
    if sums.max() == -math.inf:
        return "the model finds all options impossible"
    return sums, np.array(list(map(len, logprobs)), np.float64)
