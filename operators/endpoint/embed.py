"""Embed for a server: asks it for the vectors of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from operators.endpoint.api.json_shape import Unusable
from operators.endpoint.api.vectors import read_vectors
from operators.endpoint.by_batch import AsksByBatch, Question
from operators.scoring.stored_answers import Answer
from operators.settings import ModelSettings, StoreSettings
from operators.settings.checks import check
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError
from pipeline.api.records import add_columns, require_column


class EndpointEmbed(AsksByBatch):
    """Adds the vectors of texts from a server; operators.embed.Embed has the arguments. The length of the vectors is
    the server's, so the column has lists of any length, unless `dimensions` says it. That is sent; of a server that
    takes no notice of it the first numbers are kept."""

    title = "Embed"
    api = "embeddings"
    together = 16

    def __init__(
        self,
        model: ModelSettings,
        runtime: EngineSettings,
        text_column: str = "text",
        pooling: str | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool = False,
        as_: str | None = None,
        where: str | None = None,
        store: StoreSettings | None = None,
    ) -> None:
        super().__init__(model, [text_column], store, where)
        for key, given in (("pooling", pooling is not None), ("truncate", truncate)):
            if given:
                raise ConfigError(f"{key} is up to the server; leave it out, or give its own keys in model.extra_body")
        check(dimensions is None or dimensions >= 1, "dimensions", dimensions, "1 or more, or null for all")
        self._dimensions = dimensions
        self._text = text_column
        self._normalize = normalize
        self._name = f"{as_}_embedding" if as_ else "embedding"

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, self._text, [pa.string()])
        self._where.plan(schema)
        self._schema = add_columns(schema, pa.field(self._name, pa.list_(pa.float32(), self._dimensions or -1)))
        return self._schema

    def _questions(self, data: pa.RecordBatch) -> list[Question | str]:
        return [
            (text,) if text else f"column '{self._text}' is {'null' if text is None else 'empty'}"
            for text in data.column(self._text).to_pylist()
        ]

    def _body(self, questions: Sequence[Question]) -> Mapping[str, Any]:
        return {"input": [text for (text,) in questions], "dimensions": self._dimensions}

    def _read(self, body: Any, questions: Sequence[Question]) -> list[list[list[float]]]:
        vectors = read_vectors(body, len(questions))
        if self._dimensions is not None and len(vectors[0]) < self._dimensions:
            raise Unusable(f"the embeddings have {len(vectors[0])} numbers, and dimensions is {self._dimensions}")
        return [[vector[: self._dimensions]] for vector in vectors]

    def _arrays(self, questions: Sequence[Question], answers: Sequence[Answer]) -> list[pa.Array]:
        vectors = [vector.astype(np.float64) for (vector,) in answers]
        lengths = [float(np.linalg.norm(vector)) or 1.0 if self._normalize else 1.0 for vector in vectors]
        scaled = [(vector / length).astype(np.float32) for vector, length in zip(vectors, lengths, strict=True)]
        return [pa.array(scaled, self._schema.field(self._name).type)]
