"""Log-probabilities under the model, before any step of the chain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from operators.engine.sampling.top_k import block_maxima, fits, top_tokens
from operators.engine.sampling.vocabulary_blocks import Floats, Scratch
from operators.engine.sampling.whole_vocabulary import Full


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
    base = float(full.top) + math.log(scratch.total(full.weights()))
    ids, values = _likeliest(logits, min(count, len(logits)), scratch)
    top = zip(ids.tolist(), (values.astype(np.float64) - base).astype(np.float32).tolist(), strict=True)
    return Scored(float(np.float32(float(logits[token]) - base)), tuple(top))


def _likeliest(logits: Floats, count: int, scratch: Scratch) -> tuple[np.typing.NDArray[np.int64], Floats]:
    if count == 0:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    if fits(scratch, count):
        row = logits[None, :]
        done, ids, values = top_tokens(row, [0], block_maxima(row, [0], scratch), count, {}, scratch)
        if done:
            return ids[0], values[0]
    few = Full(logits, scratch).keep_top(count)
    return few.ids[0], few.logits[0]
