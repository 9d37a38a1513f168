"""Temperature, fixed or by entropy, and Mirostat 2, which keeps the surprise of what is drawn near a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from operators.engine.sampling.candidates import Few, Floats, row_sums
from operators.engine.sampling.row_state import SampledRow
from operators.engine.sampling.whole_vocabulary import Full


@dataclass(frozen=True)
class Temperature:
    """Divides the logits by `t`; 0 keeps only the likeliest candidate, of equal ones the one with the lowest id."""

    t: float

    def few(self, few: Few, rows: Sequence[SampledRow]) -> None:
        _divide_few(few, np.full((len(few.ids), 1), self.t, np.float32))

    def full(self, full: Full, row: SampledRow) -> None:
        _divide_full(full, self.t)


@dataclass(frozen=True)
class DynamicTemperature:
    """A temperature between t - `spread` and t + `spread` that rises with the entropy of the candidates: the entropy,
    as a part of the largest that so many could have, to the power of `exponent`, says how far it rises. Source:
    kalomaze, llama.cpp#4972."""

    t: float
    spread: float
    exponent: float

    def few(self, few: Few, rows: Sequence[SampledRow]) -> None:
        weights, distances = few.weights(), np.maximum(few.distances(), -1e4)
        totals = row_sums(weights)
        entropies = np.log(totals) - row_sums(weights * distances) / totals
        sizes = few.size[:, None]
        parts = entropies / np.log(np.maximum(sizes, 2))
        temperatures = np.array([[self._temperature(part)] for part in parts[:, 0].tolist()], np.float32)
        _divide_few(few, np.where(sizes > 1, temperatures, np.float32(1)))

    def full(self, full: Full, row: SampledRow) -> None:
        if full.size > 1:
            _divide_full(full, self._temperature(full.entropy()[0] / math.log(full.size)))

    def _temperature(self, part: float) -> float:
        low, high = max(0.0, self.t - self.spread), self.t + self.spread
        return low + (high - low) * math.pow(max(part, 0.0), self.exponent)


@dataclass(frozen=True)
class Mirostat:
    """Drops candidates whose surprise in bits is above mu, except the likeliest; mu starts at 2 * `tau`, and after
    each token moves by `eta` times the difference of `tau` and its surprise (Basu et al. 2021, algorithm 2). It is the
    last step of a chain; mu is kept by the row."""

    tau: float
    eta: float

    def few(self, few: Few, rows: Sequence[SampledRow]) -> None:
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


def _divide_few(few: Few, temperatures: Floats) -> None:
    # Distances to the largest, not logits, so that no division overflows.
    distances = few.logits - few.top
    cold = temperatures <= 0
    with np.errstate(over="ignore"):
        few.logits = np.divide(distances, np.where(cold, np.float32(1), temperatures), dtype=np.float32)
    if cold.any():
        others = np.ones_like(few.possible)
        others[np.arange(len(few.ids)), few.logits.argmax(axis=1)] = False
        few.logits[others & cold] = -np.inf


def _divide_full(full: Full, temperature: float) -> None:
    if np.float32(temperature) <= 0:
        full.narrow(np.array([full.values.argmax()]), full.size)
        return
    full.divide(temperature)
