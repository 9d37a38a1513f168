"""Choose: finds the likeliest of several answers to a question."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from operators.engine.backend.interface import TokenIds
from operators.scoring.answers_rows import Answer
from operators.scoring.columns import named
from operators.scoring.likelihood import Likelihood, ReadsLikelihoods, any_nan, check_joint
from operators.scoring.prefix_tree import Text
from operators.settings import ModelSettings, StoreSettings
from operators.settings.checks import check, check_one_of
from operators.settings.runtime import EngineSettings
from pipeline.api.records import require_column

FIELDS = (
    pa.field("choice", pa.string()),
    pa.field("choice_index", pa.int32()),
    pa.field("choice_logprobs", pa.list_(pa.float64())),
    pa.field("choice_probability", pa.float64()),
)
NORMALIZE = ("none", "bytes", "tokens")


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its options, as the model reads them: the token ids of each."""

    ids: TokenIds
    options: list[TokenIds]
    texts: list[str]

    @property
    def tokens(self) -> list[int]:
        """The tokens of each option; the first one counts the question too."""
        counts = [len(option) for option in self.options]
        return [len(self.ids) + counts[0], *counts[1:]]


class Choose(ReadsLikelihoods):
    """Adds `choice` (the likeliest option after the question), `choice_index` (its place, from 0), `choice_logprobs`
    (of each option the log-probability: the sum over its tokens) and `choice_probability` (of the choice among the
    options: the softmax of what is compared).

    The question is computed once for all its options. Nothing is generated, so each row gets an option. Of equally
    likely options the first is chosen. A row whose question or options are null or empty, or too long together for
    `runtime.max_sequence_tokens`, is a reject.

    Args:
        model, runtime: the config groups of those names.
        options: a list of texts, the same for all rows, or the name of a column with a list of texts. They continue
            the question as they are; after a text that ends in `Answer:` they begin with a space.
        question_column: what comes before an option, as text or token ids.
        normalize: what is compared. none: the log-probability of an option; bytes: that by the bytes of its text;
            tokens: that by its tokens, so that a long option is not at a disadvantage.
        joint: tokenize question and option together, as one text, and take off the tokens that the question has alone;
            white space at its end counts as the beginning of the option. Else they are tokenized apart, as a
            completion follows its prompt.
        as_: prefix of the new columns (`as` in a job file).
        store: the config group of that name, which says where answers are kept.
        where: a condition in SQL on a row's columns. Rows for which it is false or null pass by as they are, with null
            in the new columns.

    Raises:
        ConfigError: fewer than two options, one is empty or there twice, or there is no such normalisation.

    Example:
        choose:
          inputs: render
          op:
            _target_: operators.choose.Choose
            model: ${model}
            runtime: ${runtime}
            store: ${store}
            options: [positive, negative]
            question_column: prompt_text
            as: label
    """

    kind = "<f8"
    broken = "the model's logits are no distribution (NaN), or it finds all options impossible"

    def __init__(
        self,
        model: ModelSettings,
        runtime: EngineSettings,
        options: str | Sequence[str],
        question_column: str = "prompt_text",
        normalize: str = "none",
        joint: bool = False,
        as_: str | None = None,
        store: StoreSettings | None = None,
        where: str | None = None,
    ) -> None:
        check_one_of("normalize", normalize, NORMALIZE)
        self._column = options if isinstance(options, str) else None
        self._fixed = [] if isinstance(options, str) else list(options)
        if self._column is None:
            texts = all(isinstance(option, str) and option for option in self._fixed)
            check(texts, "options", self._fixed, "each is a text that is not empty; quote yes, no and numbers")
            distinct = len(set(self._fixed)) == len(self._fixed) > 1
            check(distinct, "options", self._fixed, "there are two or more, and none twice")
        super().__init__(model, runtime, [question_column], store, where)
        self._question = question_column
        self._normalize = normalize
        self._joint = joint
        self._fields = named(FIELDS, as_)

    def _check(self, schema: pa.Schema) -> None:
        super()._check(schema)
        check_joint(schema, self._joint, [self._question])
        if self._column is not None:
            require_column(schema, self._column, [pa.list_(pa.string())])

    def _texts(self, data: pa.RecordBatch) -> list[Question | str]:
        questions, ids = data.column(self._question).to_pylist(), list(self._ids(data, self._question, begins=True))
        options = [self._fixed] * len(ids) if self._column is None else data.column(self._column).to_pylist()
        reasons = [self._why_not(*row) or "" for row in zip(questions, options, strict=True)]
        to_read = [(i, option) for i, why in enumerate(reasons) if not why for option in options[i]]
        pairs: Iterable[tuple[TokenIds | None, TokenIds]]
        if self._joint:
            marked = self._tokens_of.marked(data, self._question)
            pairs = self._tokenized_jointly((questions[i], marked[i], option) for i, option in to_read)
        else:
            tokenized = self._tokenized([option.encode() for _, option in to_read], begins=False)
            pairs = zip((ids[i] for i, _ in to_read), tokenized, strict=True)
        pairs = iter(pairs)
        return [
            why or self._one(list(itertools.islice(pairs, len(row))), row)
            for why, row in zip(reasons, options, strict=True)
        ]

    def _why_not(self, question: str | list[int] | None, options: Sequence[str | None] | None) -> str | None:
        """Return the reason why a row cannot be answered; None if it can."""
        if not question:
            return f"column '{self._question}' is {'null' if question is None else 'empty'}"
        if not options:
            return f"column '{self._column}' is {'null' if options is None else 'empty'}"
        return None if all(options) else f"column '{self._column}' has an option that is null or empty"

    def _one(self, pairs: Sequence[tuple[TokenIds | None, TokenIds]], texts: list[str]) -> Question | str:
        """Return the question of a row, from the ids of its question and of each option; or why it cannot be read."""
        question, options = pairs[0][0], [option for _, option in pairs]
        if question is None or not len(question):
            return f"column '{self._question}' has no token that an option could follow"
        for text, option in zip(texts, options, strict=True):
            if not len(option):
                return f"the option {text!r} has no token of its own: the last one of the question has its characters"
        why = self._unreadable(np.concatenate([question, max(options, key=len)]))
        return why or Question(question, options, texts)

    def _asked(self, text: Question) -> Sequence[TokenIds]:
        return [text.ids, *text.options]

    def _answers(self, texts: Sequence[Question]) -> Iterator[tuple[int, Answer | None]]:
        each = [(question, option) for question in texts for option in question.options]
        # The last token of an option predicts nothing that is asked for.
        read = [Text(np.concatenate([q.ids, o[:-1]]), len(q.ids) - 1, len(q.ids)) for q, o in each]
        counts = [count for question in texts for count in question.tokens]
        likelihoods = self._likelihoods(read, [option for _, option in each], counts)
        for number, options in self._by_row([len(question.options) for question in texts], likelihoods):
            yield number, _sums(options)

    def _choice(self, question: Question, logprobs: list[float]) -> tuple[str, int, list[float], float]:
        """Return the values of FIELDS. `logprobs`: of each option the sum over its tokens."""
        sizes = {
            "none": [1] * len(logprobs),
            "bytes": [len(text.encode()) for text in question.texts],
            "tokens": [len(option) for option in question.options],
        }[self._normalize]
        compared = [logprob / size for logprob, size in zip(logprobs, sizes, strict=True)]
        best = max(compared)
        index = compared.index(best)
        total = math.fsum(math.exp(value - best) for value in compared)
        return question.texts[index], index, logprobs, 1 / total

    def _arrays(self, texts: Sequence[Question], answers: Sequence[Answer]) -> list[pa.Array]:
        chosen = (self._choice(text, logprobs.tolist()) for text, (logprobs,) in zip(texts, answers, strict=True))
        values = zip(*chosen, strict=True)
        return [pa.array(list(column), f.type) for column, f in zip(values, self._fields, strict=True)]

    def _tokens(self, text: Question) -> int:
        return sum(text.tokens)


def _sums(options: Sequence[Likelihood]) -> Answer | None:
    """Return the log-probability of each option, the sum over its tokens; None if one is NaN, or all are impossible."""
    sums = np.array([math.fsum(likelihood.logprobs.tolist()) for likelihood in options])
    return None if any_nan(options) or sums.max() == -math.inf else (sums,)
