"""Embed: texts to vectors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.engine.backend.interface import Logits, TokenIds, Wanted, inspect_model, load_model
from operators.estimate.texts import forecast_texts
from operators.rows.row_condition import Where, passed_by
from operators.scoring.text_batches import Part
from operators.scoring.text_reader import (
    TEXT_TYPES,
    TextReader,
    arithmetic_of,
    check_room,
    reading_memory,
    text_ids,
    why_unreadable,
)
from operators.settings import ModelSettings
from operators.settings.checks import check
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import Cancelled, ConfigError
from pipeline.api.forecast import Forecast, Task
from pipeline.api.protocols import BaseOperator, MemoryNeed, Runtime
from pipeline.api.records import Batch, Output, add_columns, require_column

EMBEDDING = "embedding"
Vector = npt.NDArray[np.float32]

POOLING: dict[str, Callable[[Logits], npt.NDArray[np.floating[Any]]]] = {
    "mean": lambda tokens: tokens.mean(axis=0, dtype=np.float64),
    "cls": lambda tokens: tokens[0],
    "last": lambda tokens: tokens[-1],
}
"""From the embeddings of a text's tokens, float32 [tokens, n_embd], to that of the text, [n_embd]."""


class Embed(BaseOperator):
    """Adds `embedding`, a list of float32 of the model's fixed size.

    It is pooled from the embeddings of the tokens: of all of them (`mean`), of the first (`cls`) or of the last one
    (`last`). What a model was made for stands in its card. A text that is null, empty or longer than
    `runtime.max_sequence_tokens` is a reject.

    Args:
        model, runtime: the config groups of those names.
        text_column: texts, or lists of token ids.
        pooling: mean, cls or last.
        normalize: scale every embedding to length 1.
        as_: prefix of the new column (`as` in a job file).
        where: a condition in SQL on a row's columns. Rows for which it is false or null pass by as they are, with null
            in the new column. The context, which can be as large as that of a Generate, is then taken when the first
            row comes that needs it.

    Raises:
        ConfigError: there is no such pooling.

    Example:
        embed:
          inputs: read
          op:
            _target_: operators.embed.Embed
            model: ${model}
            runtime: ${runtime}
            text_column: prompt
            pooling: mean
    """

    def __init__(
        self,
        model: ModelSettings,
        runtime: EngineSettings,
        text_column: str = "text",
        pooling: str = "mean",
        normalize: bool = True,
        as_: str | None = None,
        where: str | None = None,
    ) -> None:
        self._where = Where(where)
        self._all_rows = where is None
        self._taken: TextReader | None = None
        check(pooling in POOLING, "pooling", pooling, f"it is one of {', '.join(POOLING)}")
        self._model = model
        self._settings = runtime
        self._text = text_column
        self._pool = POOLING[pooling]
        self._normalize = normalize
        self._name = f"{as_}_{EMBEDDING}" if as_ else EMBEDDING

    def plan(self, schema: pa.Schema) -> pa.Schema:
        """Adds the column.

        Raises:
            ConfigError: the model's file does not say how long its embeddings are.
        """
        check_room(self._model, self._settings)
        require_column(schema, self._text, TEXT_TYPES)
        self._where.plan(schema)
        size = inspect_model(self._model).n_embd
        if size is None:
            raise ConfigError("the model does not say how long its embeddings are (GGUF key embedding_length)")
        self._size = size
        self._schema = add_columns(schema, pa.field(self._name, pa.list_(pa.float32(), size)))
        return self._schema

    def fingerprint(self) -> dict[str, Any]:
        """The model's content and the thread count."""
        return arithmetic_of(self._model, self._settings)

    def memory_needs(self) -> Iterable[MemoryNeed]:
        """The model, and a context of its own."""
        return reading_memory(self._model, self._settings, id(self), Wanted.EMBEDDINGS)

    def open(self, runtime: Runtime) -> None:
        """Load the model, if no other node has, and take a context, unless `where` may leave nothing to do."""
        self._runtime = runtime
        model = load_model(runtime, self._model)
        if model.n_embd != self._size:
            raise ConfigError(f"the model's embeddings have {model.n_embd} numbers, and its file says {self._size}")
        self._closing = np.array(model.closing_ids, np.int32)
        if self._all_rows:
            self._take_context()

    def forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        """What its rows will take: some of them are embedded."""

        def token_counts(data: pa.RecordBatch) -> list[int | None]:
            return [None if isinstance(ids, str) else len(ids) for ids in self._texts(data)]

        began = time.perf_counter()
        self.open(runtime)
        try:
            prepare_s = time.perf_counter() - began
            return forecast_texts(self.process, token_counts, [self._text], batches, task, prepare_s)
        finally:
            self.close()

    def process(self, batch: Batch) -> Iterable[Output]:
        """Embed the texts of one batch."""
        batch, others = self._where.split(batch)
        if others.num_rows:
            yield passed_by(others, others.data.schema.names, self._schema)
        if not batch.num_rows:
            return
        if self._runtime.cancelled:
            raise Cancelled  # a new context would let calls go on that are being cut off
        self._take_context()
        found = self._texts(batch.data)
        texts = {i: ids for i, ids in enumerate(found) if not isinstance(ids, str)}
        refused = {i: why for i, why in enumerate(found) if isinstance(why, str)}
        vectors = self._vectors(list(texts.values()))
        made = dict(zip(texts, vectors, strict=True))
        broken = [i for i, vector in made.items() if not np.isfinite(vector).all()]
        refused |= dict.fromkeys(broken, "the model's embedding of the text is not finite")
        if refused:
            yield batch.reject(list(refused), list(refused.values()))
        kept = [i for i in made if i not in refused]
        if kept:
            rows = batch.data.take(pa.array(kept, pa.int64()))
            flat = pa.array(np.concatenate([made[i] for i in kept]), pa.float32())
            column = pa.FixedSizeListArray.from_arrays(flat, self._size)
            yield batch.with_data(pa.record_batch([*rows.columns, column], schema=self._schema))

    def close(self) -> None:
        """Give the context back."""
        if self._taken is not None:
            self._taken.close()

    @property
    def _reader(self) -> TextReader:
        if self._taken is None:
            raise RuntimeError("no context has been taken")
        return self._taken

    def _take_context(self) -> None:
        if self._taken is None:
            self._taken = TextReader(self._runtime, self._model, self._settings, Wanted.EMBEDDINGS)

    def _texts(self, data: pa.RecordBatch) -> list[TokenIds | str]:
        """For each row the ids of its text, or why it cannot be embedded."""
        column = data.column(self._text)
        own = 1 if pa.types.is_string(column.type) and self._reader.model.add_bos else 0
        return [self._one(ids, own) for ids in text_ids(column, self._reader.model, begins=True)]

    def _one(self, ids: TokenIds | None, own: int) -> TokenIds | str:
        """`own`: tokens at the beginning that are not the text's own (a BOS)."""
        if ids is None:
            return f"column '{self._text}' is null"
        if len(ids) <= own:
            return f"column '{self._text}' is empty; there is nothing to embed"
        ids = np.concatenate([ids, self._closing])
        return why_unreadable(ids, self._reader.room, self._reader.model.n_vocab) or ids

    def _vectors(self, texts: list[TokenIds]) -> list[Vector]:
        vectors: list[Vector] = [np.empty(0, np.float32)] * len(texts)
        begun: dict[int, list[Logits]] = {}

        def take(number: int, part: Part) -> None:
            whole = part.start + len(part.rows) == len(texts[number])
            if whole and not part.start:
                vectors[number] = self._vector(part.rows)
                return
            parts = begun.setdefault(number, [])
            parts.append(part.rows.copy())
            if whole:
                vectors[number] = self._vector(np.concatenate(begun.pop(number)))

        self._reader.read(texts, [0] * len(texts), take)
        return vectors

    def _vector(self, tokens: Logits) -> Vector:
        """The embedding of a text, float32 [n_embd], from those of its tokens, float32 [tokens, n_embd]."""
        pooled = self._pool(tokens).astype(np.float64)
        length = math.sqrt(math.fsum(np.square(pooled).tolist())) if self._normalize else 1.0
        vector: Vector = (pooled / length if length else pooled).astype(np.float32)
        return vector
