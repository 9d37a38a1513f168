"""Classify: finds the label of a text with the classifier head of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from operators.engine.backend.interface import TokenIds
from operators.scoring.answers_rows import Answer
from operators.scoring.classifier import ReadsHead, sigmoid, softmax
from operators.scoring.columns import named
from operators.scoring.prefix_tree import Text
from operators.settings import ModelSettings, StoreSettings
from operators.settings.checks import check_one_of
from operators.settings.runtime import EngineSettings
from pipeline.api.protocols import Runtime

FIELDS = (
    pa.field("label", pa.string()),
    pa.field("label_probability", pa.float64()),
    pa.field("label_probabilities", pa.list_(pa.struct([("label", pa.string()), ("probability", pa.float64())]))),
)
ACTIVATIONS: Mapping[str, Callable[[Sequence[float]], list[float]]] = {
    "softmax": softmax,
    "sigmoid": lambda logits: [sigmoid(logit) for logit in logits],
    "none": list,
}


class Classify(ReadsHead):
    """Adds `label` (the likeliest label of the model's classifier head), `label_probability` and `label_probabilities`
    (of each label, in the order of the model).

    Labels are those in the model's file. Of equally likely ones the first counts. A text that is null, empty or longer
    than `runtime.max_sequence_tokens` is a reject.

    Args:
        model, runtime: the config groups of those names.
        text_column: texts, or lists of token ids.
        activation: makes probabilities of the outputs: softmax (one label is right), sigmoid (each label by itself) or
            none (they stay as they are). null: sigmoid for a single output, else softmax.
        truncate: cut a text that is too long, instead of rejecting it; the tokens that close a text stay.
        as_: prefix of the new columns (`as` in a job file).
        store: the config group of that name, which says where answers are kept.
        where: a condition in SQL on a row's columns. Rows for which it is false or null pass by as they are, with null
            in the new columns.

    Raises:
        ConfigError: there is no such activation, or the model has no classifier head.

    Example:
        classify:
          inputs: read
          op:
            _target_: operators.classify.Classify
            model: ${model}
            runtime: ${runtime}
            store: ${store}
            text_column: prompt
    """

    def __init__(
        self,
        model: ModelSettings,
        runtime: EngineSettings,
        text_column: str = "text",
        activation: str | None = None,
        truncate: bool = False,
        as_: str | None = None,
        store: StoreSettings | None = None,
        where: str | None = None,
    ) -> None:
        if activation is not None:
            check_one_of("activation", activation, ACTIVATIONS)
        super().__init__(model, runtime, [text_column], store, where)
        self._text = text_column
        self._activation = activation
        self.truncate = truncate
        self._fields = named(FIELDS, as_)

    def _check(self, schema: pa.Schema) -> None:
        self._check_model()
        super()._check(schema)

    def open(self, runtime: Runtime) -> None:
        super().open(runtime)
        usual = "none" if self._head.normalized else "sigmoid" if len(self._head.labels) == 1 else "softmax"
        self._activate = ACTIVATIONS[self._activation or usual]

    def _texts(self, data: pa.RecordBatch) -> list[Text | str]:
        return self._whole_texts(data, self._text, "classify")

    def _asked(self, text: Text) -> Sequence[TokenIds]:
        return [text.ids]

    def _answers(self, texts: Sequence[Text]) -> Iterator[tuple[int, Answer | None]]:
        return ((i, (outputs,) if np.isfinite(outputs).all() else None) for i, outputs in self._heads(texts))

    def _arrays(self, texts: Sequence[Text], answers: Sequence[Answer]) -> list[pa.Array]:
        names = self._head.labels
        results = [self._activate(outputs.tolist()) for (outputs,) in answers]
        best = [max(range(len(each)), key=lambda i: each[i]) for each in results]
        values = (
            [names[i] for i in best],
            [each[i] for i, each in zip(best, results, strict=True)],
            [[{"label": n, "probability": p} for n, p in zip(names, each, strict=True)] for each in results],
        )
        return [pa.array(column, f.type) for column, f in zip(values, self._fields, strict=True)]
