"""Rerank: orders the documents of a row by how well they answer its query."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from operators.endpoint.scoring import EndpointRerank
from operators.endpoint.server import ModelOrServer
from operators.engine.backend.interface import TokenIds
from operators.scoring.answers_rows import Answer
from operators.scoring.arguments import RerankArguments
from operators.scoring.classifier import ReadsHead, sigmoid
from operators.scoring.columns import Ranking, query_and_documents, ranked, rerank_arrays
from operators.scoring.prefix_tree import Text
from pipeline.api.errors import ConfigError
from pipeline.api.protocols import Runtime
from pipeline.api.records import require_column


@dataclass(frozen=True, slots=True)
class QueryDocuments:
    """The query of a row with each of its documents, as the model reads them."""

    texts: list[Text]
    documents: list[str]


class Rerank(RerankArguments, ModelOrServer, ReadsHead):
    """Adds `rerank_order` (the places of the documents, from 0, best first), `rerank_scores` and `rerank_documents` (in
    that order), and `rerank_tokens` (how many were read).

    The model is a reranker: query and document are read together, and a classifier head makes one number of them. Of
    equal scores the earlier document comes first. A row whose query or documents are null or empty, or with a document
    that is too long together with the query, is a reject.

    With `model=endpoint model.api=rerank` the scores are a server's, as it gives them, and so are the tokens.

    Args:
        model, runtime: the config groups of those names.
        query_column: texts.
        documents_column: lists of texts.
        top_n: documents to keep; null: all.
        normalize: make scores of 0 to 1 of the numbers of the head, by the logistic function, as most servers do; else
            they are given as they are, as llama-server does. Models whose head gives probabilities need none of it.
        truncate: cut a document that is too long, instead of rejecting the row; the tokens that close a text stay.
        as_: prefix of the new columns (`as` in a job file).
        store: the config group of that name, which says where answers are kept.
        where: a condition in SQL on a row's columns. Rows for which it is false or null pass by as they are, with null
            in the new columns.

    Raises:
        ConfigError: `top_n` is below 1, or the model is no reranker.

    Example:
        rerank:
          inputs: read
          op:
            _target_: operators.rerank.Rerank
            model: ${model}
            runtime: ${runtime}
            store: ${store}
            query_column: question
            documents_column: passages
            top_n: 3
    """

    at_server = EndpointRerank

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = [self.query_column, self.documents_column]
        ReadsHead.__init__(self, self.model, self.runtime, columns, self.store, self.where)

    def _check(self, schema: pa.Schema) -> None:
        self._check_model()
        require_column(schema, self.query_column, [pa.string()])
        require_column(schema, self.documents_column, [pa.list_(pa.string())])

    def open(self, runtime: Runtime) -> None:
        super().open(runtime)
        if len(self._head.labels) > 1 and not self._head.normalized:
            raise ConfigError(
                f"the model is a classifier with the labels {', '.join(self._head.labels)}, and no reranker; give it to"
                " Classify"
            )

    def _texts(self, data: pa.RecordBatch) -> list[QueryDocuments | str]:
        columns = (data.column(name).to_pylist() for name in (self.query_column, self.documents_column))
        return [self._pairs(*each) for each in zip(*columns, strict=True)]

    def _pairs(self, query: str | None, documents: list[str | None] | None) -> QueryDocuments | str:
        checked = query_and_documents((query, documents), (self.query_column, self.documents_column))
        if isinstance(checked, str):
            return checked
        query, kept = checked
        texts = []
        for number, ids in enumerate(self._joined(query, kept)):
            if why := self._unreadable(ids):
                return f"document {number} with its query: {why}"
            texts.append(Text(ids))
        return QueryDocuments(texts, kept)

    def _joined(self, query: str, documents: list[str]) -> Iterator[TokenIds]:
        """Yield the ids of the query with each document: by the model's template, or with separators between them."""
        if self._head.template is not None:
            for document in documents:
                yield self._templated(query, document)
            return
        (prefix,) = self._tokenized([query.encode()], begins=True)
        prefix = np.concatenate([prefix, np.array(self._head.separator, np.int32)])
        for ids in self._tokenized([document.encode() for document in documents], begins=False):
            yield self._closed(np.concatenate([prefix, ids]), least=len(prefix))

    def _templated(self, query: str, document: str) -> TokenIds:
        def ids(length: int) -> TokenIds:
            values = {"query": query, "document": document[:length]}
            marked = {name: self._tokens_of.mark(text) for name, text in values.items()}
            joined = self._tokens_of.joined(self._filled(values), self._filled(marked))
            return joined[int(self._loaded.add_bos) :]

        full_ids = ids(len(document))
        if len(full_ids) <= self._room or not self.truncate:
            return full_ids
        fits = bisect_right(range(1, len(document)), self._room, key=lambda length: len(ids(length)))
        return ids(max(fits, 1))

    def _filled(self, values: Mapping[str, str]) -> str:
        return re.sub(r"\{(query|document)\}", lambda slot: values[slot[1]], self._head.template or "")

    def _asked(self, text: QueryDocuments) -> Sequence[TokenIds]:
        return [each.ids for each in text.texts]

    def _answers(self, texts: Sequence[QueryDocuments]) -> Iterator[tuple[int, Answer | None]]:
        by_text = self._heads([text for pairs in texts for text in pairs.texts])
        for number, heads in self._by_row([len(pairs.texts) for pairs in texts], by_text):
            outputs = np.array([head[0] for head in heads])
            yield number, (outputs,) if np.isfinite(outputs).all() else None

    def _ranked(self, pairs: QueryDocuments, outputs: list[float]) -> Ranking:
        as_is = self._head.normalized or not self.normalize
        scores = outputs if as_is else [sigmoid(output) for output in outputs]
        return ranked(scores, pairs.documents, self.top_n, self._tokens(pairs))

    def _arrays(self, texts: Sequence[QueryDocuments], answers: Sequence[Answer]) -> list[pa.Array]:
        return rerank_arrays(
            [self._ranked(text, outputs.tolist()) for text, (outputs,) in zip(texts, answers, strict=True)]
        )

    def _tokens(self, pairs: QueryDocuments) -> int:
        return sum(len(text.ids) for text in pairs.texts)
