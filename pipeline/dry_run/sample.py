"""Takes a sample of an input: rows spread over it where the source can begin anywhere, few enough to try out."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from pipeline.api.forecast import Range, Sample
from pipeline.api.list_inbox import Given
from pipeline.api.meter import Clock
from pipeline.api.protocols import BaseOperator, overrides
from pipeline.api.records import ROW, Batch, Item, Rejects, Shard

ROWS = 1000
PATIENCE_S = 2.0
"""Seconds that a source may read, to get rows from everywhere and to find out how many there are."""
FEW_ROWS = 20_000
"""So many are read to the end. Of more, the rows of some places are."""
PLACES = 8
PLACE_ROWS = 512
LEAST_DOUBT, MOST_DOUBT = 0.02, 0.5
"""By what share a number of rows may be wrong that was found from the bytes of those that were read."""


def sample_of(
    source: BaseOperator, first_chunk: int, first_row: int, chunk_rows: int, clock: Clock = time.monotonic
) -> Sample:
    """Return about ROWS rows of those that `source`, an opened source, has from `first_row` on, or all where there are
    no more.

    Args:
        source: its `seek` is used where it has one.
        first_chunk, first_row: where the run would begin.
        chunk_rows: rows of a chunk.
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
        thinned.take_until(source.run(Given()), thinned.seen + PLACE_ROWS)
        read += 1
        if clock() > until:
            break
    where = f"from {read} places all over the input" if read == len(chunks) else f"from {read} places of its beginning"
    return thinned.sample(Range.exact(total - first_row), where)


def _read_on(
    source: BaseOperator, thinned: _Thinned, total: int | None, first_row: int, until: float, clock: Clock
) -> Sample:
    """Rows of the input from where it is now, as far as patience goes."""
    # What a source has sent is counted when it goes on: a changed share is that of the rows before this item.
    now = source.fraction_read()
    rows = 0
    fraction: float | None = None
    for item in source.run(Given()):
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
    # Rows need not be as long further on as at the beginning: the less was read, the less is sure.
    likely = (first_row + rows) / min(fraction, 1.0) - first_row
    doubt = max(LEAST_DOUBT, MOST_DOUBT * (1 - fraction))
    least = max(likely * (1 - doubt), thinned.seen)
    counted = Range(least, max(likely, least), max(likely * (1 + doubt), least))
    return thinned.sample(counted, f"{how}; how many follow is told by their bytes")


class _Thinned:
    """Keeps every row, then every second, every fourth ..., so that at most 2 x ROWS are kept of however many."""

    def __init__(self) -> None:
        self.stride = 1
        self.seen = 0
        """Rows that came."""
        self._items: list[Batch | Rejects] = []

    def take(self, item: Item | Shard) -> None:
        """Look at what a source sends."""
        if isinstance(item, Batch | Rejects):
            self.seen += item.num_rows
            self._items.append(self._thin(item))
        while sum(item.num_rows for item in self._items) > 2 * ROWS:
            self.stride *= 2
            self._items = [self._thin(item) for item in self._items]

    def take_until(self, items: Iterable[Item | Shard], seen: int) -> None:
        """Look at items until so many rows came in all, or no more do."""
        for item in items:
            self.take(item)
            if self.seen >= seen:
                break

    def sample(self, rows: Range, how: str) -> Sample:
        """The rows that are kept, of so many `rows`."""
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
