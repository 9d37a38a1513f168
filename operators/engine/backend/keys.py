"""Keys: a token and its logit in one number, whose order is that of what is drawn: likeliest first, equal ones by id.

A decoder that has left few words of each row's logits (`Decoder.reduces`) returns them so.
"""

from __future__ import annotations

from typing import TypeGuard

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
_Logits = npt.NDArray[np.float32]
_Ids = npt.NDArray[np.int64]
_SIGN = np.uint32(0x80000000)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def to_keys(logits: _Logits, ids: _Ids) -> Keys:
    """Return uint64 that rise with the logit, among equal logits with falling id; all above 0. Takes no NaN."""
    bits = (logits + np.float32(0)).view(np.uint32)  # -0.0 becomes 0.0: they are equal
    rising = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    return (rising.astype(np.uint64) << _HALF) | (_LOW - ids.astype(np.uint64))


def from_keys(keys: Keys) -> tuple[_Ids, _Logits]:
    """Return the ids and logits of which `to_keys` made `keys`."""
    rising = (keys >> _HALF).astype(np.uint32)
    logits = np.where(rising & _SIGN, rising & ~_SIGN, ~rising).astype(np.uint32).view(np.float32)
    return (_LOW - (keys & _LOW)).astype(np.int64), logits


def keys_of(logits: _Logits, ids: _Ids) -> Keys:
    """Return the keys of candidates, falling, uint64 [rows, n], of their `logits` and `ids` [rows, n] in any order. A
    NaN comes first, so that its row is seen to be no distribution."""
    keys = to_keys(np.where(np.isnan(logits), np.float32(np.nan), logits), ids)
    keys.sort(axis=1)
    return keys[:, ::-1]


def is_reduced(logits: _Logits) -> TypeGuard[Keys]:
    """Return whether `logits`, of `Decoder.decode`, are the keys of candidates."""
    return logits.dtype == np.uint64
