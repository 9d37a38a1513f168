"""Columns of token ids: Arrow list<int32> on NumPy buffers, without copies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

PROMPT_TEXT = pa.field("prompt_text", pa.string())
PROMPT_IDS = pa.field("prompt_ids", pa.list_(pa.int32()))
PROMPT_LITERALS = pa.field("prompt_literals", pa.list_(pa.int32()))
"""The characters of `prompt_text` at which the name of a control token begins that is text of the row, and no token;
null where there are none."""
NO_PROMPT = "the row has no prompt: it is not asked (where)"


def literals_of(data: pa.RecordBatch, name: str) -> pa.ListArray | None:
    """Return the column of `prompt_literals` that belongs to column `name`; None if Render did not make that one."""
    beside = name.removesuffix(PROMPT_TEXT.name) + PROMPT_LITERALS.name
    return data.column(beside) if name.endswith(PROMPT_TEXT.name) and beside in data.schema.names else None


def rows_with_names(data: pa.RecordBatch, names: Iterable[str], has_name: Callable[[str], bool]) -> list[int]:
    """Return the places of the rows that have the name of a control token in a text, or one of a list of texts, of
    these columns; those of Render are left out."""
    places: set[int] = set()
    for name in names:
        if literals_of(data, name) is None:
            for i, value in enumerate(data.column(name).to_pylist()):
                texts = [value] if isinstance(value, str) else value or ()
                if any(isinstance(text, str) and has_name(text) for text in texts):
                    places.add(i)
    return sorted(places)


def list_column(ids: npt.NDArray[np.int32], offsets: npt.NDArray[np.int32]) -> pa.ListArray:
    """Make a list<int32> column on the buffers of `ids` and `offsets`."""
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids, pa.int32()))


def list_views(column: pa.ListArray) -> list[npt.NDArray[np.int32]]:
    """Return int32 views of each list of `column`, on its buffers."""
    values = column.values.to_numpy(zero_copy_only=True)
    bounds = np.asarray(column.offsets).tolist()
    return [values[a:b] for a, b in itertools.pairwise(bounds)]
