"""ReadsTexts: the base of Score and Embed, with a model, a context of its own, and the engine's thread."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from operators.engine.backend.interface import TokenIds, Wanted, inspect_model, load_model, max_sequence_tokens
from operators.estimate.texts import forecast_texts
from operators.generation.wiring import check_room, engine_threads, model_memory, warn_unless_exact
from operators.scoring.text_batches import Part, Reader, reading_settings
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import Cancelled
from pipeline.api.forecast import Forecast, Task
from pipeline.api.protocols import BaseOperator, MemoryNeed, Runtime
from pipeline.api.records import Batch, Output, require_column

TEXT_TYPES = (pa.string(), pa.list_(pa.int32()))
"""Types of a column of texts: strings, or lists of token ids."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text to read. `start`: its first token to score."""

    ids: TokenIds
    start: int = 0


class ReadsTexts(BaseOperator):
    """Base of operators that compute columns from texts, with a context of their own. `columns`: those whose texts are
    joined into one."""

    wanted: ClassVar[Wanted]
    """Outputs to ask of the decoder: logits or embeddings."""
    broken: ClassVar[str]
    """Reason to reject a text whose result is NaN."""
    _schema: pa.Schema

    def __init__(self, model: ModelSettings, settings: EngineSettings, columns: Seq[str]) -> None:
        self._model = model
        self._settings = settings
        self._columns = columns
        self._give_back: Callable[[], None] | None = None

    @abstractmethod
    def _texts(self, data: pa.RecordBatch) -> list[Text | str]:
        """Return the text of each row, or the reason why it cannot be read."""

    @abstractmethod
    def _results(self, texts: Seq[Text]) -> list[Any]:
        """Read the texts; return the result of each, or None if it is NaN."""

    @abstractmethod
    def _arrays(self, results: Seq[Any]) -> list[pa.Array]:
        """Return the new columns."""

    def _check(self, schema: pa.Schema) -> None:
        """Check the columns to read and, before loading, the model."""
        check_room(self._model, self._settings)
        for name in self._columns:
            require_column(schema, name, TEXT_TYPES)

    def fingerprint(self) -> dict[str, Any]:
        return {"model": inspect_model(self._model).fingerprint, **self._settings.exactness()}

    def memory_needs(self) -> Iterable[MemoryNeed]:
        if (sizes := inspect_model(self._model).sizes) is not None:
            settings = reading_settings(self._settings, sizes.n_vocab)
            yield from model_memory(self._model, settings, id(self), self.wanted)

    def open(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._loaded = load_model(runtime, self._model)
        self._room = max_sequence_tokens(self._settings, self._loaded.n_ctx_train)

    def close(self) -> None:
        if self._give_back is not None:
            self._give_back()

    def forecast(self, runtime: Runtime, batches: Seq[Batch], task: Task) -> Forecast:
        began = time.perf_counter()
        self.open(runtime)
        try:
            prepare_s = time.perf_counter() - began
            return forecast_texts(self.process, self._token_counts, self._columns, batches, task, prepare_s)
        finally:
            self.close()

    def _outputs(self, batch: Batch) -> Iterable[Output]:
        found = self._texts(batch.data)
        texts = {i: text for i, text in enumerate(found) if not isinstance(text, str)}
        results = dict(zip(texts, self._results(list(texts.values())), strict=True))
        refused = {i: why for i, why in enumerate(found) if isinstance(why, str)}
        refused |= {i: self.broken for i, result in results.items() if result is None}
        if refused:
            yield batch.reject(list(refused), list(refused.values()))
        kept = [i for i in results if i not in refused]
        if kept:
            rows = batch.data.take(pa.array(kept, pa.int64()))
            columns = [*rows.columns, *self._arrays([results[i] for i in kept])]
            yield batch.with_data(pa.record_batch(columns, schema=self._schema))

    def _take_context(self) -> None:
        if self._give_back is not None:
            return
        runtime, model = self._runtime, self._loaded
        decoder, self._give_back = model.lease(reading_settings(self._settings, model.n_vocab), self.wanted)
        warn_unless_exact(runtime, self._settings, model)
        self._reader = Reader(decoder)
        runtime.when_stuck(model.abort)
        self._threads = engine_threads(runtime)
        self._groups, self._seconds = 0, 0.0
        node = runtime.node
        runtime.totals(lambda: {f"{node}/groups": float(self._groups), f"{node}/read_s": self._seconds})

    def _read(self, texts: Seq[TokenIds], first: Seq[int], take: Callable[[int, Part], None]) -> None:
        """Read `texts`, each from position `first` or earlier, and have the engine's thread `take` the outputs: the
        index of a text and its parts, in order; another text may come between."""
        for group in self._reader.groups([len(ids) for ids in texts]):
            if self._runtime.cancelled:
                raise Cancelled

            def work(group: Seq[int] = group) -> None:
                began = time.perf_counter()
                for part in self._reader.read([texts[i] for i in group], [first[i] for i in group]):
                    take(group[part.index], part)
                self._seconds += time.perf_counter() - began

            self._threads.call(work)
            self._groups += 1
            self._runtime.meter.tokens_in += sum(len(texts[i]) for i in group)

    def _ids(self, column: pa.Array, *, begins: bool) -> Iterator[TokenIds | None]:
        """Yield the int32 token ids of each text of `column`, None for null. Lists of ids are passed on; a null in one
        becomes -1.

        Special tokens in a text are parsed. `begins`: a BOS is put first where the model wants one.
        """
        if pa.types.is_list(column.type):
            for ids in column.to_pylist():
                yield None if ids is None else np.array([-1 if i is None else i for i in ids], np.int32)
            return
        texts = column.cast(pa.binary()).to_pylist()
        flat, offsets = self._loaded.tokenize([text or b"" for text in texts])
        skipped = 1 if self._loaded.add_bos and not begins else 0
        for text, start, end in zip(texts, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            yield None if text is None else flat[start + skipped : end]

    def _bos(self, column: pa.Array) -> int:
        """Return the number of BOS tokens that were put before each text of `column`: 0 or 1."""
        return int(pa.types.is_string(column.type) and self._loaded.add_bos)

    def _readable(self, text: Text) -> Text | str:
        """Return `text`, or the reason why the model cannot read it."""
        if len(text.ids) > self._room:
            return f"the text has {len(text.ids)} tokens, and runtime.max_sequence_tokens is {self._room}"
        n_vocab = self._loaded.n_vocab
        unknown = text.ids[(text.ids < 0) | (text.ids >= n_vocab)]
        if len(unknown):
            return f"token id {unknown[0]} is not in the vocabulary, which has the ids 0 to {n_vocab - 1}"
        return text

    def _token_counts(self, data: pa.RecordBatch) -> list[int | None]:
        """Return the number of tokens to read for each row; None if it is rejected."""
        return [None if isinstance(text, str) else len(text.ids) for text in self._texts(data)]
