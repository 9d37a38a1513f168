"""Columns of token ids: Arrow list<int32> on NumPy buffers, without copies."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pyarrow as pa

PROMPT_IDS = pa.field("prompt_ids", pa.list_(pa.int32()))
PROMPT_LITERALS = pa.field("prompt_literals", pa.list_(pa.int32()))
"""The characters of `prompt_text` at which the name of a control token begins that is text of the row, and no token;
null where there are none."""


def list_column(ids: npt.NDArray[np.int32], offsets: npt.NDArray[np.int32]) -> pa.ListArray:
    """Make a list<int32> column on the buffers of `ids` and `offsets`."""
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids, pa.int32()))


def list_views(column: pa.ListArray) -> list[npt.NDArray[np.int32]]:
    """Return int32 views of each list of `column`, on its buffers."""
    values = column.values.to_numpy(zero_copy_only=True)
    bounds = np.asarray(column.offsets).tolist()
    return [values[a:b] for a, b in itertools.pairwise(bounds)]
