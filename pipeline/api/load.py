"""The load of rows: their number, or more where they have many bytes, wherever rows in memory are bounded."""

from __future__ import annotations

from pipeline.api.records import Batch, Item, Rejects

ROW_BYTES = 128 << 10
"""Bytes that count as a row."""


def load_of(item: Item) -> int:
    """Return as how many rows an item counts."""
    if isinstance(item, Batch):
        return max(item.num_rows, int(item.data.nbytes) // ROW_BYTES)
    return item.num_rows if isinstance(item, Rejects) else 0
