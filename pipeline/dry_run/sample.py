"""Take a sample of an input, spread over all of it if the source can seek."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from pipeline.api.forecast import Range, Sample
from pipeline.api.meter import Clock
from pipeline.api.protocols import BaseOperator, ListInbox, overrides
from pipeline.api.records import ROW, Batch, Item, Rejects, Shard

ROWS = 1000
PATIENCE_S = 2.0
"""Seconds to read from a source, for rows from all of the input and an estimate of their number."""
FEW_ROWS = 20_000
"""Inputs with up to this many rows are read to the end; larger ones at PLACES positions."""
PLACES = 8
PLACE_ROWS = 512
LEAST_DOUBT, MOST_DOUBT = 0.02, 0.5
"""Relative error of a number of rows that was estimated from the share of bytes read."""


def sample_of(
    source: BaseOperator, first_chunk: int, first_row: int, chunk_rows: int, clock: Clock = time.monotonic
) -> Sample:
    """Return a sample of about ROWS rows from `first_row` on, or of all rows if there are fewer.

    Args:
        source: an opened source; one that can seek is read at several positions.
        first_chunk, first_row: start of the run.
        chunk_rows: rows per chunk.
    """
    total = source.total_rows()
    thinned = _Thinned()
    until = clock() + PATIENCE_S
    if total is None or total - first_row <= FEW_ROWS or not overrides(source, "seek"):
        if first_chunk:
            source.seek(first_chunk)
        return _read_on(source, thinned, total, first_row, until, clock)
    last = (total - 1) // chunk_rows
    chunks = sorted({first_chunk + (last - first_chunk) * i // (PLACES - 1) for i in range(PLACES)})
    read = 0
    for chunk in chunks:
        source.seek(chunk)
        thinned.take_until(source.run(ListInbox()), thinned.seen + PLACE_ROWS)
        read += 1
        if clock() > until:
            break
    where = f"from {read} places all over the input" if read == len(chunks) else f"from {read} places of its beginning"
    return thinned.sample(Range.exact(total - first_row), where)


def _read_on(
    source: BaseOperator, thinned: _Thinned, total: int | None, first_row: int, until: float, clock: Clock
) -> Sample:
    """Return a sample of the rows from the current position on, read until the time `until`."""
    # A source updates its share when it continues after an item, so a new share is that of the rows before this item.
    now = source.fraction_read()
    rows = 0
    fraction: float | None = None
    for item in source.run(ListInbox()):
        before, now = now, source.fraction_read()
        if now != before:
            rows, fraction = thinned.seen, now
        if clock() > until and thinned.seen >= ROWS and (total is not None or now is None or fraction):
            break
        thinned.take(item)
    else:
        how = "all there are" if thinned.stride == 1 else "spread over the whole input"
        return thinned.sample(Range.exact(thinned.seen), how)
    how = f"spread over its first {thinned.seen:,} rows"
    if total is not None:
        return thinned.sample(Range.exact(total - first_row), how)
    if not fraction:
        how += "; the source does not say how many there are"
        return thinned.sample(Range(thinned.seen, thinned.seen, math.inf), how)
    # Later rows may be longer or shorter than the first ones: the less was read, the larger the error.
    likely = (first_row + rows) / min(fraction, 1.0) - first_row
    doubt = max(LEAST_DOUBT, MOST_DOUBT * (1 - fraction))
    least = max(likely * (1 - doubt), thinned.seen)
    counted = Range(least, max(likely, least), max(likely * (1 + doubt), least))
    return thinned.sample(counted, f"{how}; how many follow is told by their bytes")


class _Thinned:
    """Keeps every row, then every second, every fourth ..., so that it never holds more than 2 x ROWS rows."""

    def __init__(self) -> None:
        self.stride = 1
        self.seen = 0
        """Rows received."""
        self._items: list[Batch | Rejects] = []

    def take(self, item: Item | Shard) -> None:
        """Add an item of a source."""
        if isinstance(item, Batch | Rejects):
            self.seen += item.num_rows
            self._items.append(self._thin(item))
        while sum(item.num_rows for item in self._items) > 2 * ROWS:
            self.stride *= 2
            self._items = [self._thin(item) for item in self._items]

    def take_until(self, items: Iterable[Item | Shard], seen: int) -> None:
        """Add items until `seen` rows were received in all, or `items` ends."""
        for item in items:
            self.take(item)
            if self.seen >= seen:
                break

    def sample(self, rows: Range, how: str) -> Sample:
        """Return the kept rows as a sample of `rows` rows."""
        items = [item for item in self._items if item.num_rows]
        batches = [item for item in items if isinstance(item, Batch)]
        return Sample(batches, [item for item in items if isinstance(item, Rejects)], rows, how)

    def _thin(self, item: Batch | Rejects) -> Batch | Rejects:
        if isinstance(item, Rejects):
            return Rejects(0, tuple(reject for reject in item.rows if reject.row % self.stride == 0), item.node)
        if self.stride == 1:
            return Batch(0, item.data)
        rows = np.asarray(item.data.column(ROW.name))
        return Batch(0, item.data.filter(pa.array(rows % self.stride == 0)))
