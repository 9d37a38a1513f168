"""Remasking: confidences of the unknown tokens of a block, and the choice of those to commit.

The rules are those of SDAR's generate.py (github.com/JetAstra/SDAR) and, for entropies, of JetEngine's scheduler, with
the confidence taken before top-k and top-p, as SDAR's own evaluation takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from operators.engine.backend.interface import Logits
from operators.engine.sampling.candidates import Floats, Ids
from operators.settings.block_diffusion import BlockDiffusionSettings, Remasking

_FLOATS_AT_ONCE = 1 << 16
"""Logits processed at a time: 256 KiB, which stays in a core's cache."""


@dataclass(frozen=True)
class Confidences:
    """Statistics of the logits of some positions.

    Args:
        tops: int64 [positions], the likeliest token.
        maxima: float32 [positions], its logit; not finite where the logits are no distribution.
        sums: float32 [positions], the sum of exp((logit - maximum) / temperature) over the vocabulary.
        entropies: float32 [positions] in nats; None if not asked for.
    """

    tops: Ids
    maxima: Floats
    sums: Floats
    entropies: Floats | None

    def alone(self, position: int) -> Confidences:
        """Return a copy for one position."""
        one = slice(position, position + 1)
        entropies = None if self.entropies is None else self.entropies[one].copy()
        return Confidences(self.tops[one].copy(), self.maxima[one].copy(), self.sums[one].copy(), entropies)

    def probability(self, position: int, logit: float, temperature: float) -> float:
        """Return the probability of a token with this `logit`."""
        return float(np.exp((logit - float(self.maxima[position])) / temperature) / float(self.sums[position]))


def confidences_of(logits: Logits, temperatures: Floats, *, entropies: bool) -> Confidences:
    """Compute confidences in float32 from `logits`, float32 [positions, n_vocab], at `temperatures`, float32
    [positions]."""
    count, n_vocab = logits.shape
    at_once = max(1, _FLOATS_AT_ONCE // n_vocab)
    buffer = np.empty((min(at_once, count), n_vocab), np.float32)
    tops = logits.argmax(axis=1)
    maxima = logits[np.arange(count), tops]
    sums = np.empty(count, np.float32)
    nats = np.zeros(count, np.float32) if entropies else None
    with np.errstate(invalid="ignore"):  # rows with NaN or infinite logits
        for start in range(0, count, at_once):
            end = min(start + at_once, count)
            distances = np.subtract(logits[start:end], maxima[start:end, None], out=buffer[: end - start])
            distances /= temperatures[start:end, None]
            weighted = distances.copy() if nats is not None else None
            weights = np.exp(distances, out=distances)
            # Row by row: summed over an axis, the number of rows could change the last bits.
            for place, line in enumerate(weights, start):
                sums[place] = line.sum()
            if nats is not None and weighted is not None:
                weighted[weights == 0] = 0
                weighted *= weights
                for place, line in enumerate(weighted, start):
                    nats[place] = np.log(sums[place]) - line.sum() / sums[place]
    return Confidences(tops, maxima, sums, nats)


def committed(
    settings: BlockDiffusionSettings, step: int, confidences: Sequence[float], entropies: Sequence[float] | None
) -> list[int]:
    """Choose which unknown tokens of a block are committed in its denoising `step`, counted from 0.

    Args:
        confidences, entropies: of these tokens, in the order of their positions. Of equal ones the first comes first.

    Returns:
        indices of `confidences`.
    """
    count = settings.committed(step)
    places = range(len(confidences))
    if settings.remasking == Remasking.SEQUENTIAL:
        return list(places)[:count]
    if settings.remasking == Remasking.ENTROPY and entropies is not None:
        return _lowest_entropies(entropies, settings.eb_threshold)
    if settings.remasking == Remasking.DYNAMIC:
        sure = [place for place in places if confidences[place] > settings.confidence_threshold]
        if len(sure) >= count:
            return sure
    return sorted(places, key=lambda place: -confidences[place])[:count]


def _lowest_entropies(entropies: Sequence[float], most: float) -> list[int]:
    order = sorted(range(len(entropies)), key=lambda place: entropies[place])
    total = 0.0
    for taken, place in enumerate(order):
        total += entropies[place]
        if total >= most:
            return order[: max(1, taken)]
    return order
