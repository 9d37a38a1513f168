"""Log-probabilities under the model, before any step of the chain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from operators.engine.sampling.candidates import Floats
from operators.engine.sampling.top_k import fits, top_of_row
from operators.engine.sampling.whole_vocabulary import Full, Scratch


@dataclass(frozen=True, slots=True)
class Scored:
    """The log-probability of a token under the model.

    Args:
        logprob: natural logarithm of its probability, in the precision of float32.
        top: the likeliest tokens and their log-probabilities, most likely first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


def score(logits: Floats, token: int, count: int, scratch: Scratch) -> Scored:
    """Score `token` and the `count` likeliest by a log-softmax of `logits`, float32 [n_vocab]."""
    full = Full(logits, scratch)
    base = _log_total(full)
    top: list[tuple[int, float]] = []
    if count > 0:
        count = min(count, len(logits))
        few = (top_of_row(logits, count, scratch) if fits(scratch, count) else None) or full.keep_top(count)
        values = (few.logits[0].astype(np.float64) - base).astype(np.float32)
        top = list(zip(few.ids[0].tolist(), values.tolist(), strict=True))
    return Scored(float(np.float32(float(logits[token]) - base)), tuple(top))


def score_each(logits: Floats, tokens: Sequence[int], scratch: Scratch) -> list[float]:
    """Return the log-probability of each of `tokens`, as `score` does."""
    base = _log_total(Full(logits, scratch))
    return [float(np.float32(float(logits[token]) - base)) for token in tokens]


def _log_total(full: Full) -> float:
    """Return the logarithm of the sum of exp of all logits."""
    return float(full.top) + math.log(full.scratch.total(full.weights()))
