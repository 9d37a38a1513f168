"""Embed: turns texts into vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.endpoint.scoring import EndpointEmbed
from operators.endpoint.server import ModelOrServer
from operators.engine.backend.interface import Logits, TokenIds
from operators.engine.backend.loading import inspect_model
from operators.engine.backend.shape import Wanted
from operators.scoring.answers_rows import Answer
from operators.scoring.arguments import EmbedArguments
from operators.scoring.columns import EMBEDDING, named
from operators.scoring.prefix_tree import Text
from operators.scoring.text_batches import Part
from operators.scoring.text_reader import ReadsTexts
from operators.settings.checks import check, check_one_of
from pipeline.api.errors import Cancelled, ConfigError
from pipeline.api.protocols import Runtime

POOLING: dict[str, Callable[[Logits], npt.NDArray[np.floating[Any]]]] = {
    "mean": lambda tokens: tokens.mean(axis=0, dtype=np.float64),
    "cls": lambda tokens: tokens[0],
    "last": lambda tokens: tokens[-1],
}
"""From the embeddings of a text's tokens, float32 [tokens, n_embd], to that of the text, [n_embd]."""


class Embed(EmbedArguments, ModelOrServer, ReadsTexts):
    """Adds `embedding`, a list of float32 of the model's fixed size.

    The model is an encoder (BERT, ModernBERT, XLM-RoBERTa, ...), or one that continues texts. The vector is pooled from
    the embeddings of the tokens: of all of them (`mean`), of the first (`cls`) or of the last one (`last`); a model's
    card says for which it was made. A text that is null, empty or longer than `runtime.max_sequence_tokens` is a
    reject.

    With `model=endpoint model.api=embeddings` the vectors are a server's, in lists of its length.

    Args:
        model, runtime: the config groups of those names.
        text_column: texts, or lists of token ids.
        pooling: mean, cls or last. null: what the model's file says, and mean where it says nothing.
        normalize: scale every embedding to length 1.
        dimensions: keep the first so many numbers of an embedding, which are then scaled: for models that were trained
            for it (matryoshka). null: all.
        truncate: cut a text that is too long, instead of rejecting it; the tokens that close a text stay.
        as_: prefix of the new column (`as` in a job file).
        where: a condition in SQL on a row's columns. Rows for which it is false or null pass by as they are, with null
            in the new column. The context, which can be as large as that of a Generate, is then taken when the first
            row comes that needs it.
        store: the config group of that name, which says where answers are kept.
        adapter: a name of `model.adapters`, or a list of names, for all rows of the node; null or base: none.
        data: the config group of that name: where it has a column of adapters, by which this node does not go, the node
            has to say its `adapter`, or base.

    Raises:
        ConfigError: there is no such pooling, or the model's embeddings have fewer numbers than `dimensions`.

    Example:
        embed:
          inputs: read
          op:
            _target_: operators.embed.Embed
            model: ${model}
            runtime: ${runtime}
            store: ${store}
            text_column: prompt
    """

    at_server = EndpointEmbed

    wanted = Wanted.EMBEDDINGS
    broken = "the model's embedding of the text is not finite"

    def __post_init__(self) -> None:
        if self.pooling is not None:
            check_one_of("pooling", self.pooling, POOLING)
        ReadsTexts.__init__(self, self.model, self.runtime, [self.text_column], self.store, self.where)

    def _check(self, schema: pa.Schema) -> None:
        super()._check(schema)
        size = inspect_model(self._model).n_embd
        if size is None:
            raise ConfigError("the model does not say how long its embeddings are (GGUF key embedding_length)")
        self._n_embd = size
        self._size = size if self.dimensions is None else self.dimensions
        check(1 <= self._size <= size, "dimensions", self._size, f"1 to {size}, the numbers of the model's embeddings")
        self._fields = named([pa.field(EMBEDDING, pa.list_(pa.float32(), self._size))], self.as_)

    def open(self, runtime: Runtime) -> None:
        super().open(runtime)
        size = self._loaded.n_embd
        if size != self._n_embd:
            raise ConfigError(f"the model's embeddings have {size} numbers, and its file says {self._n_embd}")
        self._pool = POOLING[self._pooled]
        if self.where is None:
            self._take_context()

    @property
    def _pooled(self) -> str:
        return self.pooling or self._loaded.pooling or "mean"

    def _options(self) -> tuple[object, ...]:
        dimensions = () if self.dimensions is None else (self.dimensions,)
        return self._pooled, self.normalize, *dimensions

    def _texts(self, data: pa.RecordBatch) -> list[Text | str]:
        return self._whole_texts(data, self.text_column, "embed")

    def _asked(self, text: Text) -> Sequence[TokenIds]:
        return [text.ids]

    def _answers(self, texts: Sequence[Text]) -> Iterator[tuple[int, Answer | None]]:
        if self._runtime.cancelled:
            raise Cancelled  # a new lease would end the abort of running calls
        self._take_context()
        vectors: dict[int, Answer | None] = {}
        begun: dict[int, list[Logits]] = {}

        def take(part: Part) -> None:
            rows: Logits | None = None
            for number in part.texts:
                if part.end < len(texts[number].ids):
                    rows = part.rows.copy() if rows is None else rows
                    begun.setdefault(number, []).append(rows)
                else:
                    vectors[number] = self._vector(np.concatenate([*begun.pop(number, []), part.rows]))

        return ((i, vectors.pop(i)) for i in self._read(texts, take))

    def _arrays(self, texts: Sequence[Text], answers: Sequence[Answer]) -> list[pa.Array]:
        numbers = np.concatenate([vector for (vector,) in answers])
        return [pa.FixedSizeListArray.from_arrays(pa.array(numbers, pa.float32()), self._size)]

    def _vector(self, tokens: Logits) -> Answer | None:
        """Pool the embeddings of the tokens, float32 [tokens, n_embd], into that of the text, float32 [dimensions]."""
        pooled = self._pool(tokens)[: self._size].astype(np.float64)
        length = math.sqrt(math.fsum(np.square(pooled).tolist())) if self.normalize else 1.0
        vector = (pooled / length if length else pooled).astype(np.float32)
        return (vector,) if np.isfinite(vector).all() else None
