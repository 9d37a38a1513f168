"""ReadsHead: the base of Rerank and Classify, which ask a model's classifier head about whole texts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Seq

from operators.engine.backend.interface import Head, Logits
from operators.engine.backend.loading import inspect_model
from operators.engine.backend.shape import Wanted
from operators.generation.wiring import check_room
from operators.scoring.prefix_tree import Text
from operators.scoring.text_batches import Part
from operators.scoring.text_reader import ReadsTexts
from pipeline.api.errors import ConfigError
from pipeline.api.protocols import Runtime


class ReadsHead(ReadsTexts):
    """Base of operators that compute the outputs of a classifier head."""

    wanted = Wanted.HEAD
    broken = "an output of the model's classifier head is not finite"

    def open(self, runtime: Runtime) -> None:
        super().open(runtime)
        self._take_context()

    @property
    def _head(self) -> Head:
        head = self._loaded.head
        assert head is not None  # plan has looked
        return head

    def _check_model(self) -> None:
        """Check, before loading, that the model has a head."""
        check_room(self._model, self._settings, continues=False)
        if not inspect_model(self._model).outputs:
            raise ConfigError(
                f"{self._model.path or self._model.file or self._model.loader}: the model has no classifier head (a"
                " tensor cls.weight or cls.output.weight); Rerank takes rerankers, Classify classifiers"
            )

    def _heads(self, texts: Seq[Text]) -> Iterator[tuple[int, Logits]]:
        """Yield the number of each text and the outputs of the head for it, float32 [labels]."""
        outputs: dict[int, Logits] = {}

        def take(part: Part) -> None:
            outputs.update((number, part.rows[0].copy()) for number in part.texts)

        return ((i, outputs.pop(i)) for i in self._read(texts, take))


def sigmoid(logit: float) -> float:
    """Return the logistic function of a number."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))


def softmax(logits: Seq[float]) -> list[float]:
    """Return the probabilities of logits."""
    powers = [math.exp(logit - max(logits)) for logit in logits]
    return [power / math.fsum(powers) for power in powers]
