"""XTC, "exclude top choices": now and then drops all likely candidates but the least likely of them."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from operators.engine.sampling.candidates import Few, by_logit
from operators.engine.sampling.step import SampledRow
from operators.engine.sampling.whole_vocabulary import Full

DRAW = 1
"""Which of a step's random numbers decides; 0 draws the token."""


@dataclass(frozen=True)
class Xtc:
    """With `probability` drops every candidate whose probability is at least `threshold`, but for the least likely of
    these. Source: p-e-w, text-generation-webui#6335."""

    probability: float
    threshold: float

    def few(self, few: Few, rows: Seq[SampledRow]) -> None:
        """See Step.few."""
        chosen = np.array([self._happens(row) for row in rows])
        if chosen.any():
            likely = few.probabilities() >= self.threshold
            dropped = np.maximum(np.count_nonzero(likely, axis=1) - 1, 0) * chosen * (few.size > 1)
            few.logits[few.possible & (few.possible.cumsum(axis=1) <= dropped[:, None])] = -np.inf
            few.size = few.size - dropped

    def full(self, full: Full, row: SampledRow) -> None:
        """See Step.full."""
        if not self._happens(row) or full.size < 2:
            return
        weights = full.weights()
        least = np.float32(self.threshold * full.scratch.total(weights))
        likely = np.flatnonzero(np.greater_equal(weights, least, out=full.scratch.flags))
        if len(likely) > 1:
            dropped = by_logit(full.values[likely], likely)[0][:-1]
            full.writable()[dropped] = -np.inf
            full.size -= len(dropped)

    def _happens(self, row: SampledRow) -> bool:
        return row.sampling.uniforms.at(len(row.tokens), DRAW) < self.probability
