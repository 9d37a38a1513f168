"""Score: computes the log-probabilities of given texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.engine.backend.interface import TokenIds, Wanted
from operators.engine.sampling.logprobs import score
from operators.engine.sampling.whole_vocabulary import Scratch
from operators.generation.completions import LOGPROBS
from operators.scoring.text_batches import Part
from operators.scoring.text_reader import ReadsTexts, Text
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.protocols import Runtime
from pipeline.api.records import Batch, Output, add_columns

FIELDS = (
    LOGPROBS,
    pa.field("logprob_sum", pa.float64()),
    pa.field("token_count", pa.int32()),
    pa.field("perplexity", pa.float64()),
)
Logprobs = npt.NDArray[np.float32]


class Score(ReadsTexts):
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

    wanted = Wanted.EVERY
    broken = "the model's logits for the text are no distribution (NaN)"

    def __init__(
        self,
        model: ModelSettings,
        runtime: EngineSettings,
        text_column: str = "text",
        given_column: str | None = None,
        as_: str | None = None,
    ) -> None:
        super().__init__(model, runtime, [text_column] if given_column is None else [given_column, text_column])
        self._text = text_column
        self._given = given_column
        self._fields = [f.with_name(f"{as_}_{f.name}") if as_ else f for f in FIELDS]

    def plan(self, schema: pa.Schema) -> pa.Schema:
        self._check(schema)
        self._schema = add_columns(schema, *self._fields)
        return self._schema

    def open(self, runtime: Runtime) -> None:
        super().open(runtime)
        self._take_context()
        self._scratch = Scratch(self._loaded.n_vocab)

    def process(self, batch: Batch) -> Iterable[Output]:
        return self._outputs(batch)

    def _texts(self, data: pa.RecordBatch) -> list[Text | str]:
        texts = self._ids(data.column(self._text), begins=self._given is None)
        if self._given is None:
            before: Iterable[TokenIds | None] = [np.empty(0, np.int32)] * data.num_rows
            own = self._bos(data.column(self._text))
        else:
            before, own = self._ids(data.column(self._given), begins=True), 0
        return [self._one(*pair, own) for pair in zip(before, texts, strict=True)]

    def _one(self, before: TokenIds | None, text: TokenIds | None, own: int) -> Text | str:
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
        return self._readable(Text(ids, start))

    def _results(self, texts: Sequence[Text]) -> list[Logprobs | None]:
        logprobs = [np.empty(len(text.ids) - text.start, np.float32) for text in texts]

        def take(number: int, part: Part) -> None:
            """Score the tokens whose logits are in `part`: the logits after a token predict the next one."""
            text = texts[number]
            for position, logits in enumerate(part.rows, part.start):
                if text.start - 1 <= position < len(text.ids) - 1:
                    scored = score(logits, int(text.ids[position + 1]), 0, self._scratch)
                    logprobs[number][position + 1 - text.start] = scored.logprob

        self._read([text.ids for text in texts], [text.start - 1 for text in texts], take)
        return [None if np.isnan(found).any() else found for found in logprobs]

    def _arrays(self, results: Sequence[Logprobs]) -> list[pa.Array]:
        totals = [math.fsum(logprobs.tolist()) for logprobs in results]
        counts = [len(logprobs) for logprobs in results]
        with np.errstate(over="ignore"):
            perplexities = [float(np.exp(np.float64(-t / n))) for t, n in zip(totals, counts, strict=True)]
        values = (results, totals, counts, perplexities)
        return [pa.array(column, f.type) for column, f in zip(values, self._fields, strict=True)]
