"""Score: how likely a model thinks given texts are."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.engine.backend.interface import TokenIds, Wanted
from operators.engine.sampling.logprobs import score
from operators.engine.sampling.vocabulary_blocks import Layout, Scratch
from operators.estimate.texts import forecast_texts
from operators.generation.logprobs import LOGPROBS
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
from operators.settings.runtime import EngineSettings
from pipeline.api.forecast import Forecast, Task
from pipeline.api.protocols import BaseOperator, MemoryNeed, Runtime
from pipeline.api.records import Batch, Output, add_columns, require_column

FIELDS = (
    LOGPROBS,
    pa.field("logprob_sum", pa.float64()),
    pa.field("token_count", pa.int32()),
    pa.field("perplexity", pa.float64()),
)


@dataclass(slots=True)
class _Scored:
    """A text. `ids`: what comes before it, then it; `start`: its first token that is scored."""

    index: int
    ids: TokenIds
    start: int
    logprobs: npt.NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        self.logprobs = np.empty(len(self.ids) - self.start, np.float32)

    @property
    def total(self) -> float:
        return math.fsum(self.logprobs.tolist())

    @property
    def perplexity(self) -> float:
        with np.errstate(over="ignore"):
            return float(np.exp(np.float64(-self.total / len(self.logprobs))))


class Score(BaseOperator):
    """Adds `logprobs` (of each scored token, natural logarithm, under the model), `logprob_sum`, `token_count` (tokens
    scored) and `perplexity` (exp of the negative mean).

    The first token of a text is scored too if something comes before it: the `given_column`, or the BOS of a model
    that wants one. Else there is nothing to predict it from, and the others are scored.
    A text that is null, empty or longer than `runtime.max_sequence_tokens` is a reject.

    Args:
        model, runtime: the config groups of those names.
        text_column: texts, or lists of token ids.
        given_column: what comes before the text and is not scored, as text or token ids. The two are tokenized apart,
            as a completion follows its prompt.
        as_: prefix of the new columns (`as` in a job file).

    Example:
        score:
          inputs: render
          op:
            _target_: operators.score.Score
            model: ${model}
            runtime: ${runtime}
            text_column: answer
            given_column: prompt_text
    """

    def __init__(
        self,
        model: ModelSettings,
        runtime: EngineSettings,
        text_column: str = "text",
        given_column: str | None = None,
        as_: str | None = None,
    ) -> None:
        self._model = model
        self._settings = runtime
        self._text = text_column
        self._given = given_column
        self._fields = [f.with_name(f"{as_}_{f.name}") if as_ else f for f in FIELDS]

    def plan(self, schema: pa.Schema) -> pa.Schema:
        """Adds the columns."""
        check_room(self._model, self._settings)
        for name in (self._text, self._given):
            if name is not None:
                require_column(schema, name, TEXT_TYPES)
        self._schema = add_columns(schema, *self._fields)
        return self._schema

    def fingerprint(self) -> dict[str, Any]:
        """The model's content and the thread count."""
        return arithmetic_of(self._model, self._settings)

    def memory_needs(self) -> Iterable[MemoryNeed]:
        """The model, and a context of its own."""
        return reading_memory(self._model, self._settings, id(self), Wanted.EVERY)

    def open(self, runtime: Runtime) -> None:
        """Load the model, if no other node has, and take a context."""
        self._reader = TextReader(runtime, self._model, self._settings, Wanted.EVERY)
        self._scratch = Scratch(Layout(self._reader.model.n_vocab))

    def forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        """What its rows will take: some of them are scored."""

        def token_counts(data: pa.RecordBatch) -> list[int | None]:
            return [len(text.ids) if isinstance(text, _Scored) else None for text in self._texts(data)]

        began = time.perf_counter()
        self.open(runtime)
        try:
            prepare_s = time.perf_counter() - began
            columns = [name for name in (self._given, self._text) if name is not None]
            return forecast_texts(self.process, token_counts, columns, batches, task, prepare_s)
        finally:
            self.close()

    def process(self, batch: Batch) -> Iterable[Output]:
        """Score the texts of one batch."""
        found = self._texts(batch.data)
        texts = [text for text in found if isinstance(text, _Scored)]
        refused = {i: why for i, why in enumerate(found) if isinstance(why, str)}

        def take(number: int, part: Part) -> None:
            self._take(texts[number], part)

        self._reader.read([text.ids for text in texts], [text.start - 1 for text in texts], take)
        broken = [text.index for text in texts if np.isnan(text.logprobs).any()]
        refused |= dict.fromkeys(broken, "the model's logits for the text are no distribution (NaN)")
        if refused:
            yield batch.reject(list(refused), list(refused.values()))
        texts = [text for text in texts if text.index not in refused]
        if texts:
            rows = batch.data.take(pa.array([text.index for text in texts], pa.int64()))
            yield batch.with_data(pa.record_batch([*rows.columns, *self._columns(texts)], schema=self._schema))

    def close(self) -> None:
        """Give the context back."""
        self._reader.close()

    def _texts(self, data: pa.RecordBatch) -> list[_Scored | str]:
        """For each row its text, or why it cannot be scored."""
        model = self._reader.model
        if self._given is None:
            texts = text_ids(data.column(self._text), model, begins=True)
            before: Iterable[TokenIds | None] = [np.empty(0, np.int32)] * data.num_rows
        else:
            texts = text_ids(data.column(self._text), model, begins=False)
            before = text_ids(data.column(self._given), model, begins=True)
        is_text = pa.types.is_string(data.schema.field(self._text).type)
        own = 1 if self._given is None and is_text and model.add_bos else 0
        return [self._one(i, *pair, own) for i, pair in enumerate(zip(before, texts, strict=True))]

    def _one(self, index: int, before: TokenIds | None, text: TokenIds | None, own: int) -> _Scored | str:
        """`own`: tokens at the beginning of `text` that are not the text's own (a BOS)."""
        if before is None or text is None:
            return f"column '{self._text if text is None else self._given}' is null"
        if len(text) <= own:
            return f"column '{self._text}' is empty; there is nothing to score"
        ids = np.concatenate([before, text])
        start = max(len(before) + own, 1)
        if len(ids) == start:
            return (
                f"column '{self._text}' is a single token with nothing before it, so there is nothing to score;"
                " given_column names what comes before"
            )
        return why_unreadable(ids, self._reader.room, self._reader.model.n_vocab) or _Scored(index, ids, start)

    def _take(self, text: _Scored, part: Part) -> None:
        """The logits behind a token say how likely the next one is."""
        for position, logits in enumerate(part.rows, part.start):
            if text.start - 1 <= position < len(text.ids) - 1:
                scored = score(logits, int(text.ids[position + 1]), 0, self._scratch)
                text.logprobs[position + 1 - text.start] = scored.logprob

    def _columns(self, texts: list[_Scored]) -> list[pa.Array]:
        values = (
            [text.logprobs for text in texts],
            [text.total for text in texts],
            [len(text.logprobs) for text in texts],
            [text.perplexity for text in texts],
        )
        return [pa.array(column, f.type) for column, f in zip(values, self._fields, strict=True)]
