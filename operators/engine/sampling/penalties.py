"""Penalties for tokens that came before: repetition, presence, frequency."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from operators.engine.sampling.logit_edits import Change, history
from operators.engine.sampling.step import HistoryStep, SampledRow


@dataclass(frozen=True)
class Penalties(HistoryStep):
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
        ids, counts = np.unique(history(row, self.last_n), return_counts=True)
        subtract = counts.astype(np.float32) * np.float32(self.frequency) + np.float32(self.presence)
        return Change(ids.astype(np.int64), -subtract, self.repetition)
