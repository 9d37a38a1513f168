"""Steps that drop candidates by their probability: top-k, top-p, min-p, typical-p, top-n-sigma, XTC."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from operators.engine.sampling.candidates import Doubles, Few, Floats, by_logit, row_sums
from operators.engine.sampling.row_state import XTC, SampledRow
from operators.engine.sampling.top_k import fits, top_of_row
from operators.engine.sampling.whole_vocabulary import FEW, Full

NUCLEUS = 512
"""Candidates that TopP tries first over a whole vocabulary."""


@dataclass(frozen=True)
class TopK:
    """Keeps the `k` likeliest; of equal ones those with the lowest ids."""

    k: int

    def few(self, few: Few, rows: Sequence[SampledRow]) -> None:
        size = np.minimum(few.size, self.k)
        few.keep(few.possible.cumsum(axis=1) <= self.k)
        few.size = size

    def full(self, full: Full, row: SampledRow) -> None:
        if self.k < len(full.values):
            size = min(full.size, self.k)
            full.keep_top(self.k).size[:] = size
        elif len(full.values) <= FEW:
            full.narrow(np.arange(len(full.values)), full.size)


@dataclass(frozen=True)
class TopP:
    """Keeps the likeliest candidates whose probabilities together reach `p` (Holtzman et al. 2019), and of these those
    with at least `floor` times the largest probability: a min-p step that follows at once is done here.

    Over a whole vocabulary the normaliser Z is summed over all of it, but only some candidates are looked at, the n
    likeliest. They suffice if
    - their weights reach p * Z: the nucleus ends among them, and both cuts keep a beginning of the order; or
    - every token that reaches the floor is among them: what the floor keeps is a beginning of the order that ends
      among them, and the nucleus either ends there too or reaches beyond it and cuts nothing.
    With a floor the candidates are the tokens that reach it, if they are few; else the 512 likeliest. Where these do
    not suffice, `Full.keep_mass` finds the place of the cut by bisection.
    """

    p: float
    floor: float = 0.0

    def few(self, few: Few, rows: Sequence[SampledRow]) -> None:
        weights = few.weights()
        self._keep(few, weights, row_sums(weights))

    def full(self, full: Full, row: SampledRow) -> None:
        weights = full.weights()
        total = full.scratch.total(weights)
        if not (np.isfinite(total) and total > 0):
            return
        if self.floor > 0 and self._floor_suffices(full):
            pass
        elif not self._likeliest_suffice(full, total):
            full.keep_mass(np.negative(full.values, out=full.scratch.scores), self.p * total)
            if self.floor > 0:
                min_p = MinP(self.floor)
                min_p.full(full, row) if full.few is None else min_p.few(full.few, [row])
            return
        if full.few is not None:
            self._keep(full.few, full.few.weights(), np.array([[total]]))

    def _floor_suffices(self, full: Full) -> bool:
        flags = np.greater_equal(full.values, _floor(full.top, self.floor), out=full.scratch.flags)
        if np.count_nonzero(flags) > FEW:
            return False
        full.narrow(np.flatnonzero(flags))
        return True

    def _likeliest_suffice(self, full: Full, total: float) -> bool:
        if not fits(full.scratch, NUCLEUS):  # a vocabulary of fewer than 1,024 tokens
            full.narrow(np.arange(len(full.values)), full.size)
            return True
        few = top_of_row(full.values, NUCLEUS, full.scratch)
        if few is None or row_sums(few.weights())[0, 0] < self.p * total:
            return False
        full.few = few
        return True

    def _keep(self, few: Few, weights: Doubles, totals: Doubles) -> None:
        """Cut by `p` of `totals`, float64 [rows, 1], and then by the floor."""
        running = weights.cumsum(axis=1)
        before = running < self.p * totals
        kept = np.ones_like(before)
        kept[:, 1:] = before[:, :-1]
        few.keep(kept & few.possible)
        if self.floor > 0:
            MinP(self.floor).few(few, [])


@dataclass(frozen=True)
class MinP:
    """Keeps the candidates with at least `p` times the probability of the likeliest (Nguyen et al. 2024)."""

    p: float

    def few(self, few: Few, rows: Sequence[SampledRow]) -> None:
        few.keep(few.logits >= _floor(few.top, self.p))

    def full(self, full: Full, row: SampledRow) -> None:
        flags = np.greater_equal(full.values, _floor(full.top, self.p), out=full.scratch.flags)
        full.keep(flags, int(np.count_nonzero(flags)))


@dataclass(frozen=True)
class TypicalP:
    """Keeps the candidates whose surprise is nearest the entropy and whose probabilities together exceed `p` (Meister
    et al. 2022). Of equally near ones the likelier goes first, then the lower id. Impossible ones are dropped first."""

    p: float

    def few(self, few: Few, rows: Sequence[SampledRow]) -> None:
        weights, distances = few.weights(), np.maximum(few.distances(), -1e4)
        totals = row_sums(weights)
        # |-log p - H| with -log p = log Z - d and H = log Z - (sum of w d) / Z
        distance = np.abs(row_sums(weights * distances) / totals - distances)
        distance[~few.possible] = np.inf
        order = np.argsort(distance, axis=1, kind="stable")
        running = np.take_along_axis(weights, order, 1).cumsum(axis=1)
        nearest = np.ones_like(order, np.bool_)
        nearest[:, 1:] = (running <= self.p * totals)[:, :-1]
        kept = np.empty_like(nearest)
        np.put_along_axis(kept, order, nearest, 1)
        few.keep(kept & few.possible)

    def full(self, full: Full, row: SampledRow) -> None:
        if len(full.values) <= FEW:
            self.few(full.narrow(np.arange(len(full.values)), full.size), [row])
            return
        entropy, total = full.entropy()
        scores = full.scratch.scores
        np.subtract(np.float32(math.log(total) - entropy), scores, out=scores)
        np.abs(scores, out=scores)
        full.keep_mass(scores, self.p * total)


@dataclass(frozen=True)
class TopNSigma:
    """Makes candidates impossible whose logit is more than `n` standard deviations of the logits below the largest
    (Tang et al. 2024). As in llama.cpp they count on as candidates, with probability 0."""

    n: float

    def few(self, few: Few, rows: Sequence[SampledRow]) -> None:
        possible = few.possible
        counts = np.count_nonzero(possible, axis=1)[:, None]
        distances = np.where(possible, few.distances(), 0.0)
        means = row_sums(distances) / counts
        deviations = np.sqrt(row_sums(np.where(possible, (distances - means) ** 2, 0.0)) / counts)
        few.logits[(distances < -self.n * deviations) & (few.size > 1)[:, None]] = -np.inf

    def full(self, full: Full, row: SampledRow) -> None:
        scratch = full.scratch
        impossible = np.equal(full.values, -np.inf, out=scratch.flags)
        count = len(full.values) - int(np.count_nonzero(impossible))
        if count == 0 or full.size < 2:
            return
        distances = full.distances(scratch.scores)
        if count < len(full.values):
            np.putmask(distances, impossible, np.float32(0))
        mean = scratch.total(distances) / count
        squares = np.subtract(distances, np.float32(mean), out=scratch.product)
        np.multiply(squares, squares, out=squares)
        if count < len(full.values):
            np.putmask(squares, impossible, np.float32(0))
        deviation = math.sqrt(scratch.total(squares) / count)
        full.mask(np.greater_equal(distances, np.float32(-self.n * deviation), out=scratch.flags))


@dataclass(frozen=True)
class Xtc:
    """Exclude top choices: with `probability` drops all candidates whose probability is at least `threshold`, except
    the least likely of these. Source: p-e-w, text-generation-webui#6335."""

    probability: float
    threshold: float

    def few(self, few: Few, rows: Sequence[SampledRow]) -> None:
        chosen = np.array([self._happens(row) for row in rows])
        if chosen.any():
            likely = few.probabilities() >= self.threshold
            dropped = np.maximum(np.count_nonzero(likely, axis=1) - 1, 0) * chosen * (few.size > 1)
            few.logits[few.possible & (few.possible.cumsum(axis=1) <= dropped[:, None])] = -np.inf
            few.size = few.size - dropped

    def full(self, full: Full, row: SampledRow) -> None:
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
        return row.sampling.uniforms.at(len(row.tokens), XTC) < self.probability


def _floor(top: Floats | np.float32, p: float) -> Floats | np.float32:
    """The logit of `p` times the probability of the largest, rounded as llama.cpp does."""
    return top + np.float32(math.log(p))
