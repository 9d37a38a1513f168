"""Score: computes the log-probabilities of given texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from operators.endpoint.scoring import EndpointScore
from operators.endpoint.server import ModelOrServer
from operators.engine.backend.interface import TokenIds
from operators.scoring.answers_rows import Answer
from operators.scoring.arguments import ScoreArguments
from operators.scoring.columns import score_arrays
from operators.scoring.likelihood import ReadsLikelihoods, any_nan, check_joint
from operators.scoring.prefix_tree import Text
from pipeline.api.errors import ConfigError


class Score(ScoreArguments, ModelOrServer, ReadsLikelihoods):
    """Adds `logprobs` (of each scored token, natural logarithm, under the model), `logprob_sum`, `token_count` (tokens
    scored), `perplexity` (exp of the negative mean) and `is_greedy` (whether each scored token is the likeliest one at
    its place).

    The first token of a text is scored too if something comes before it: the `given_column`, or the BOS of a model
    that wants one. Else there is nothing to predict it from, and the others are scored.
    A text that is null, empty or longer than `runtime.max_sequence_tokens` is a reject. What texts of a batch begin
    with in common is computed once.

    With `model=endpoint model.api=completions` a server scores the texts, where it gives the log-probabilities of a
    prompt (docs/endpoints.md). It tokenizes a text together with what comes before, so `given_column` needs `joint`,
    and it does not score a text's first token.

    Args:
        model, runtime: the config groups of those names.
        text_column: texts, or lists of token ids.
        given_column: what comes before the text and is not scored, as text or token ids. The two are tokenized apart,
            as a completion follows its prompt.
        joint: tokenize the two together, as one text, and take off the tokens that the given text has alone; white
            space at its end counts as the beginning of the text. Both are then texts.
        as_: prefix of the new columns (`as` in a job file).
        store: the config group of that name, which says where answers are kept.
        where: a condition in SQL on a row's columns. Rows for which it is false or null pass by as they are, with null
            in the new columns.
        adapter: a name of `model.adapters`, or a list of names, for all rows of the node; null or base: none.
        data: the config group of that name: where it has a column of adapters, by which this node does not go, the node
            has to say its `adapter`, or base.

    Raises:
        ConfigError: `joint` without a `given_column`.

    Example:
        score:
          inputs: render
          op:
            _target_: operators.score.Score
            model: ${model}
            runtime: ${runtime}
            store: ${store}
            text_column: answer
            given_column: prompt_text
    """

    at_server = EndpointScore

    broken = "the model's logits for the text are no distribution (NaN)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.joint and self.given_column is None:
            raise ConfigError("joint=true tokenizes a text together with what comes before it; add given_column")
        columns = [self.text_column] if self.given_column is None else [self.given_column, self.text_column]
        ReadsLikelihoods.__init__(self, self.model, self.runtime, columns, self.store, self.where)

    def _check(self, schema: pa.Schema) -> None:
        super()._check(schema)
        check_joint(schema, self.joint, self._columns)

    def _texts(self, data: pa.RecordBatch) -> list[Text | str]:
        text = data.column(self.text_column)
        bos_tokens = self._bos(text) if self.given_column is None else 0
        return [self._one(*pair, bos_tokens) for pair in self._pairs(data, text)]

    def _pairs(self, data: pa.RecordBatch, text: pa.Array) -> Iterator[tuple[TokenIds | None, TokenIds | None]]:
        """Yield the token ids of what comes before the text of each row, and of the text; None for null."""
        if self.given_column is None:
            yield from ((np.empty(0, np.int32), ids) for ids in self._ids(data, self.text_column, begins=True))
            return
        given_texts = data.column(self.given_column)
        if not self.joint:
            yield from zip(
                self._ids(data, self.given_column, begins=True),
                self._ids(data, self.text_column, begins=False),
                strict=True,
            )
            return
        values = list(zip(given_texts.to_pylist(), text.to_pylist(), strict=True))
        marked = self._tokens_of.marked(data, self.given_column)
        triples = ((before or "", m, after or "") for (before, after), m in zip(values, marked, strict=True))
        tokenized = self._tokenized_jointly(triples)
        for (before, after), ids in zip(values, tokenized, strict=True):
            yield None if before is None else ids[0], None if after is None else ids[1]

    def _one(self, prefix: TokenIds | None, text: TokenIds | None, bos_tokens: int) -> Text | str:
        if prefix is None or text is None:
            return f"column '{self.text_column if text is None else self.given_column}' is null"
        if len(text) <= bos_tokens:
            return f"column '{self.text_column}' is empty; there is nothing to score"
        ids = np.concatenate([prefix, text])
        start = max(len(prefix) + bos_tokens, 1)
        if len(ids) == start:
            return (
                f"column '{self.text_column}' is a single token with nothing before it, so there is nothing to score;"
                " given_column names what comes before"
            )
        return self._unreadable(ids) or Text(ids, start - 1)

    def _asked(self, text: Text) -> Sequence[TokenIds]:
        return text.ids[: text.first + 1], text.ids[text.first + 1 :]

    def _answers(self, texts: Sequence[Text]) -> Iterator[tuple[int, Answer | None]]:
        for number, likelihood in self._likelihoods(texts, [text.ids[text.first + 1 :] for text in texts]):
            is_greedy = np.array([likelihood.is_greedy], np.float32)
            yield number, None if any_nan([likelihood]) else (likelihood.logprobs, is_greedy)

    def _arrays(self, texts: Sequence[Text], answers: Sequence[Answer]) -> list[pa.Array]:
        return score_arrays(answers)
