"""Mirostat 2: keeps the surprise of what is drawn near a target."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from operators.engine.sampling.candidates import Few
from operators.engine.sampling.step import SampledRow
from operators.engine.sampling.whole_vocabulary import Full


@dataclass(frozen=True)
class Mirostat:
    """Drops candidates whose surprise in bits is above mu, except the likeliest; mu starts at 2 * `tau`, and after
    each token moves by `eta` times the difference of `tau` and its surprise (Basu et al. 2021, algorithm 2). It is the
    last step of a chain; mu is kept by the row."""

    tau: float
    eta: float

    def few(self, few: Few, rows: Seq[SampledRow]) -> None:
        least = np.array([[self._least(row)] for row in rows])
        kept = few.probabilities() >= least
        kept[np.arange(len(kept)), few.logits.argmax(axis=1)] = True
        few.keep(kept & few.possible)

    def full(self, full: Full, row: SampledRow) -> None:
        weights = full.weights()
        least = np.float32(min(1.0, self._least(row) * full.scratch.total(weights)))
        flags = np.greater_equal(weights, least, out=full.scratch.flags)
        if math.isclose(least, 1.0):
            full.narrow(np.array([full.values.argmax()]))
            return
        np.logical_and(flags, np.greater(weights, 0, out=full.scratch.marks), out=flags)
        full.keep(flags, int(np.count_nonzero(flags)))

    def drawn(self, row: SampledRow, probability: float) -> None:
        """Move mu of `row` by the token that was drawn, which had `probability` among the candidates kept."""
        row.sampling.mirostat_mu = self._mu(row) - self.eta * (-math.log2(probability) - self.tau)

    def _mu(self, row: SampledRow) -> float:
        return 2 * self.tau if row.sampling.mirostat_mu is None else row.sampling.mirostat_mu

    def _least(self, row: SampledRow) -> float:
        """The probability whose surprise is mu."""
        return float(2.0 ** -max(self._mu(row), -1.0))
