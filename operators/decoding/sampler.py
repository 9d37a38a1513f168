"""Draws one token for each row from its logits, in float32 NumPy, without a sort of the vocabulary.

The steps are those of llama.cpp's default chain in its order: top_k, top_p, min_p, temperature, draw. All three cuts
keep a prefix of the tokens in order of falling probability: they come down to how many of the likeliest tokens stay.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from operators.decoding.model import Logits
from operators.decoding.sequence import SamplingParams, Sequence

BLOCKS = 64
"""Tokens in a block of `top_tokens`. Block j is every (V // 64)-th token from j: NumPy takes the maximum over a middle
axis much faster than over contiguous blocks."""
NUCLEUS = 1024
"""Candidates that are tried first where only top_p cuts."""

Ids = npt.NDArray[np.int64]


class Sampler:
    """Draws tokens. Holds no state of a row: random numbers come from the row itself."""

    def draw(self, logits: Logits, rows: Seq[Sequence]) -> list[int | None]:
        """A token for each row.

        Args:
            logits: float32 [rows, n_vocab].
            rows: the sequences, in the order of the logits.

        Returns:
            token ids; None for a row whose logits are no distribution (NaN, or -inf everywhere).
        """
        best = logits.argmax(axis=1)
        sane = np.isfinite(logits[np.arange(len(rows)), best])
        tokens: list[int | None] = [int(t) if ok else None for t, ok in zip(best, sane, strict=True)]
        for i, row in enumerate(rows):
            if sane[i] and not row.params.greedy:
                tokens[i] = draw_one(logits[i], row.params, row.uniforms.at(len(row.tokens)))
        return tokens


def draw_one(logits: Logits, params: SamplingParams, uniform: float) -> int:
    """One token of `logits`, float32 [n_vocab], by inversion: `uniform` in [0, 1) picks the place."""
    ids, values = candidates(logits, params)
    weights = np.exp((values - values[0] if len(values) else values) / params.temperature)
    total = weights.cumsum()
    place = int(np.searchsorted(total, uniform * total[-1], side="right"))
    return int(ids[min(place, len(ids) - 1)])


def candidates(logits: Logits, params: SamplingParams) -> tuple[Ids, npt.NDArray[np.float64]]:
    """The tokens that the cuts leave, most likely first, and their logits in float64."""
    n_vocab = len(logits)
    if 0 < params.top_k < n_vocab:
        ids = top_tokens(logits, params.top_k)
        return _cut(ids, logits, params, _weight_of(logits[ids], logits[ids[0]]))
    if params.min_p > 0:
        ids = np.flatnonzero(logits >= logits.max() + np.log(params.min_p))
        return _cut(_by_logit(logits, ids), logits, params, _weight_of(logits, logits.max()))
    if params.top_p < 1:
        return _nucleus(logits, params)
    return _cut(_by_logit(logits, np.arange(len(logits))), logits, params, 1.0)


def top_tokens(logits: Logits, k: int) -> Ids:
    """The `k` most likely tokens, most likely first, equal ones by id; fewer where the others are -inf. Exact.

    Every token at or above the k-th largest logit lies in a block whose maximum is at or above the k-th largest block
    maximum: those k blocks alone hold k tokens that are not below it. So only the tokens of such blocks are sorted.
    """
    width = len(logits) // BLOCKS
    if width < 2 * k:
        return _by_logit(logits, np.arange(len(logits)))[:k]
    maxima = logits[: BLOCKS * width].reshape(BLOCKS, width).max(axis=0)
    threshold = np.partition(maxima, width - k)[width - k]
    blocks = np.flatnonzero(maxima >= threshold)
    inside = (blocks[None, :] + width * np.arange(BLOCKS)[:, None]).ravel()
    ids = np.concatenate([inside, np.arange(BLOCKS * width, len(logits))])
    ids = ids[logits[ids] >= threshold]
    return _by_logit(logits, ids)[:k]


def _nucleus(logits: Logits, params: SamplingParams) -> tuple[Ids, npt.NDArray[np.float64]]:
    weight = _weight_of(logits, logits.max())
    ids = top_tokens(logits, min(NUCLEUS, len(logits)))
    if _weight_of(logits[ids], logits[ids[0]]) < params.top_p * weight:
        ids = _by_logit(logits, np.arange(len(logits)))
    return _cut(ids, logits, params, weight)


def _cut(ids: Ids, logits: Logits, params: SamplingParams, weight: float) -> tuple[Ids, npt.NDArray[np.float64]]:
    """Apply top_p and min_p to `ids`, most likely first. `weight`: the sum of exp(logit - largest) that top_p is of."""
    values = logits[ids].astype(np.float64)
    keep = len(ids)
    if params.top_p < 1:
        reached = np.exp(values - values[0]).cumsum() >= params.top_p * weight
        keep = int(reached.argmax()) + 1 if reached.any() else keep
    if params.min_p > 0:
        keep = min(keep, int(np.count_nonzero(values >= values[0] + np.log(params.min_p))))
    return ids[:keep], values[:keep]


def _weight_of(logits: Logits, largest: np.float32) -> float:
    return float(np.exp((logits - largest).astype(np.float64)).sum())


def _by_logit(logits: Logits, ids: Ids) -> Ids:
    """The possible ones of `ids`, most likely first."""
    ids = ids[logits[ids] > -np.inf]
    return ids[np.lexsort((ids, -logits[ids]))]
