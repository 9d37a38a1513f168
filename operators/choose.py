"""Choose: finds the likeliest of several answers to a question."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from operators.endpoint.scoring import EndpointChoose
from operators.endpoint.server import ModelOrServer
from operators.engine.backend.interface import TokenIds
from operators.generation.reasoning import Reasoning, reasoning_tags
from operators.scoring.answers_rows import Answer
from operators.scoring.arguments import ChooseArguments
from operators.scoring.columns import choice_arrays, chosen
from operators.scoring.likelihood import Likelihood, ReadsLikelihoods, any_nan, check_joint
from operators.scoring.prefix_tree import Text
from pipeline.api.protocols import Runtime

IN_REASONING = (
    "column '{}' ends within the model's reasoning, where an option is no answer; a chat template that knows it ends it"
    " with model.template_kwargs={{enable_thinking: false}}"
)
NEVER_LIKELIER = (
    "%s: the option %r begins with the tokens of %r, so it is never the likelier of the two; let them differ from the"
    " first word on, or compare by length (Choose with normalize=bytes)"
)


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


class Choose(ChooseArguments, ModelOrServer, ReadsLikelihoods):
    """Adds `choice` (the likeliest option after the question), `choice_index` (its place, from 0), `choice_logprobs`
    (of each option the log-probability: the sum over its tokens) and `choice_probability` (of the choice among the
    options: the softmax of what is compared).

    The question is computed once for all its options. Nothing is generated, so each row gets an option. Of equally
    likely options the first is chosen. A row whose question or options are null or empty, or too long together for
    `runtime.max_sequence_tokens`, is a reject. So is one whose question ends within the model's reasoning: nothing is
    reasoned here.

    With `model=endpoint model.api=completions` a server has the probabilities, where it gives those of a prompt
    (docs/endpoints.md): a request for each option, which `joint` tokenizes together with its question.

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
        adapter: a name of `model.adapters`, or a list of names, for all rows of the node; null or base: none.
        data: the config group of that name: where it has a column of adapters, by which this node does not go, the node
            has to say its `adapter`, or base.

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

    at_server = EndpointChoose

    kind = "<f8"
    broken = "the model's logits are no distribution (NaN), or it finds all options impossible"

    def __post_init__(self) -> None:
        super().__post_init__()
        ReadsLikelihoods.__init__(self, self.model, self.runtime, [self.question_column], self.store, self.where)

    def _check(self, schema: pa.Schema) -> None:
        super()._check(schema)
        check_joint(schema, self.joint, self._columns)
        self._check_options(schema)

    def open(self, runtime: Runtime) -> None:
        super().open(runtime)
        tags = reasoning_tags(self._model)
        self._reasoning = None if tags is None else Reasoning(self._loaded, tags)
        ids = [option.tobytes() for option in self._tokenized([text.encode() for text in self._fixed], begins=False)]
        pairs = itertools.permutations(zip(ids, self._fixed, strict=True), 2) if self.normalize == "none" else ()
        for (begin, short), (whole, long) in pairs:
            if whole.startswith(begin):
                runtime.log.warning(NEVER_LIKELIER, runtime.node, long, short)

    def _texts(self, data: pa.RecordBatch) -> list[Question | str]:
        questions = data.column(self.question_column).to_pylist()
        ids = list(self._ids(data, self.question_column, begins=True))
        options = self._options_of(data)
        reasons = [self._why_not(*row) or "" for row in zip(questions, options, strict=True)]
        to_read = [(i, option) for i, why in enumerate(reasons) if not why for option in options[i]]
        pairs: Iterable[tuple[TokenIds | None, TokenIds]]
        if self.joint:
            marked = self._tokens_of.marked(data, self.question_column)
            pairs = self._tokenized_jointly((questions[i], marked[i], option) for i, option in to_read)
        else:
            tokenized = self._tokenized([option.encode() for _, option in to_read], begins=False)
            pairs = zip((ids[i] for i, _ in to_read), tokenized, strict=True)
        pairs = iter(pairs)
        return [
            why or self._one(list(itertools.islice(pairs, len(row))), row)
            for why, row in zip(reasons, options, strict=True)
        ]

    def _one(self, pairs: Sequence[tuple[TokenIds | None, TokenIds]], texts: list[str]) -> Question | str:
        """Return the question of a row, from the ids of its question and of each option; or why it cannot be read."""
        question, options = pairs[0][0], [option for _, option in pairs]
        if question is None or not len(question):
            return f"column '{self.question_column}' has no token that an option could follow"
        if self._reasoning is not None and self._reasoning.begins_within(question):
            return IN_REASONING.format(self.question_column)
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

    def _arrays(self, texts: Sequence[Question], answers: Sequence[Answer]) -> list[pa.Array]:
        rows = zip(texts, answers, strict=True)
        return choice_arrays(
            [chosen(q.texts, sums.tolist(), list(map(len, q.options)), self.normalize) for q, (sums,) in rows]
        )

    def _tokens(self, text: Question) -> int:
        return sum(text.tokens)


def _sums(options: Sequence[Likelihood]) -> Answer | None:
    """Return the log-probability of each option, the sum over its tokens; None if one is NaN, or all are impossible."""
    sums = np.array([math.fsum(likelihood.logprobs.tolist()) for likelihood in options])
    return None if any_nan(options) or sums.max() == -math.inf else (sums,)
