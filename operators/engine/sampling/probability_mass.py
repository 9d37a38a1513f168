"""Where a cut falls that keeps a share of the probability, over a vocabulary and without a sort of it."""

from __future__ import annotations

import numpy as np

from operators.engine.sampling.vocabulary_blocks import Floats
from operators.engine.sampling.whole_vocabulary import FEW, Full


def keep_mass(full: Full, scores: Floats, goal: float) -> None:
    """Keep the candidates with the lowest `scores` whose weights together reach `goal`; of equal ones those with the
    lowest ids.

    Bisects the range of the scores: the tokens at or below `low` weigh less than the goal, those at or below `high` do
    not. When few tokens are left in between, or none can be told apart, they alone are sorted.

    Args:
        full: the row; `weights` of its scratch holds exp(logit - largest).
        scores: float32 [n_vocab], in `scores` of the scratch; +inf for what is no candidate.
        goal: more than 0 and at most the sum of the weights.
    """
    scratch = full.scratch
    flags = np.isfinite(scores, out=scratch.flags)
    count_high = int(np.count_nonzero(flags))
    high = np.float32(scores.max(initial=-np.inf, where=flags))
    low = np.nextafter(np.float32(scores.min()), np.float32(-np.inf))
    before, count_low = 0.0, 0
    while count_high - count_low > FEW:
        middle = np.float32(low / 2 + high / 2)
        if not low < middle < high:
            break
        np.less_equal(scores, middle, out=flags)
        mass = scratch.total(np.multiply(scratch.weights, flags, out=scratch.product))
        count = int(np.count_nonzero(flags))
        if mass < goal:
            low, before, count_low = middle, mass, count
        else:
            high, count_high = middle, count
    np.greater(scores, low, out=flags)
    np.logical_and(flags, np.less_equal(scores, high, out=scratch.marks), out=flags)
    between = np.flatnonzero(flags)
    between = between[np.argsort(scores[between], kind="stable")]
    running = before + scratch.weights[between].astype(np.float64).cumsum()
    between = between[: int(np.count_nonzero(running < goal)) + 1]
    np.less_equal(scores, low, out=flags)
    flags[between] = True
    full.keep(flags, count_low + len(between))
