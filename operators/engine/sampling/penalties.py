"""Penalties for tokens that came before: repetition, presence, frequency."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from operators.engine.sampling.logit_edits import Change, history
from operators.engine.sampling.step import Editing, SampledRow
from operators.engine.sampling.vocabulary_blocks import Floats, Ids


@dataclass(frozen=True)
class Penalties(Editing):
    """Lowers the logits of the tokens among the last `last_n` of prompt and completion.

    A positive logit is divided by `repetition` and another one multiplied by it (Keskar et al. 2019, CTRL, with
    llama.cpp's correction for negative logits); then `presence` and count * `frequency` are subtracted.

    Args:
        last_n: None for the whole row.
    """

    last_n: int | None
    repetition: float
    presence: float
    frequency: float

    def change(self, row: SampledRow) -> Change | None:
        """See HistoryStep.change."""
        ids, counts = np.unique(history(row, self.last_n), return_counts=True)
        subtract = counts.astype(np.float32) * np.float32(self.frequency) + np.float32(self.presence)
        return Penalised(ids.astype(np.int64), np.float32(self.repetition), subtract)


class Penalised:
    """A Change: `repetition` for all of `ids`, and `subtract`, float32 [n]."""

    def __init__(self, ids: Ids, repetition: np.float32, subtract: Floats) -> None:
        self.ids = ids
        self._repetition = repetition
        self._subtract = subtract

    def apply(self, logits: Floats, which: Ids | slice) -> Floats:
        """See Change.apply."""
        scaled = np.where(logits <= 0, logits * self._repetition, logits / self._repetition)
        return scaled - self._subtract[which]
