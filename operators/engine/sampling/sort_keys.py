"""Sorting by falling logit, equal ones by id: one unsigned number for both."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from operators.engine.sampling.vocabulary_blocks import Floats, Ids

Keys = npt.NDArray[np.uint64]
_SIGN = np.uint32(0x80000000)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def to_keys(logits: Floats, ids: Ids) -> Keys:
    """uint64 that rise with the logit, and among equal logits with falling id. 0 is below every key; no NaN."""
    bits = (logits + np.float32(0)).view(np.uint32)  # -0.0 becomes 0.0: they are equal
    rising = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    return (rising.astype(np.uint64) << _HALF) | (_LOW - ids.astype(np.uint64))


def from_keys(keys: Keys) -> tuple[Ids, Floats]:
    """The ids and logits that `to_keys` was given."""
    rising = (keys >> _HALF).astype(np.uint32)
    logits = np.where(rising & _SIGN, rising & ~_SIGN, ~rising).astype(np.uint32).view(np.float32)
    return (_LOW - (keys & _LOW)).astype(np.int64), logits


def by_logit(logits: Floats, ids: Ids) -> tuple[Ids, Floats]:
    """`ids` and their `logits` [n], most likely first, equal ones by id."""
    return from_keys(np.sort(to_keys(logits, ids))[::-1])
