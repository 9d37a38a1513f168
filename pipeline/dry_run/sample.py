"""Take a sample of an input, spread over all of it if the source can seek."""

from __future__ import annotations

import math
import time

import numpy as np
import pyarrow as pa

from pipeline.api.errors import ConfigError
from pipeline.api.forecast import NOTHING, Range
from pipeline.api.meter import Clock
from pipeline.api.protocols import ListInbox, Operator, Source
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


class InputSample:
    """Keeps every row of an input, then every second, every fourth ..., never more than `most` rows."""

    def __init__(self, most: float = 2 * ROWS) -> None:
        self._most = most
        self.rows = NOTHING  # source rows that the run has to process, unreadable ones included
        self.how = ""  # how the sample was taken, for the printed report
        self.stride = 1
        self.seen = 0  # rows received
        self._items: list[Batch | Rejects] = []

    @property
    def batches(self) -> list[Batch]:
        """The sampled rows, all of chunk 0, with their true `row`."""
        return [item for item in self._items if isinstance(item, Batch) and item.num_rows]

    @property
    def rejects(self) -> list[Rejects]:
        """Sampled rows that could not be read."""
        return [item for item in self._items if isinstance(item, Rejects) and item.num_rows]

    @property
    def taken(self) -> int:
        """Rows in the sample, unreadable ones included."""
        return sum(item.num_rows for item in self._items)

    def take(self, item: Item | Shard) -> None:
        if isinstance(item, Batch | Rejects):
            self.seen += item.num_rows
            self._items.append(self._thin(item))
        while self.taken > self._most:
            self.stride *= 2
            self._items = [self._thin(item) for item in self._items]

    def _thin(self, item: Batch | Rejects) -> Batch | Rejects:
        if isinstance(item, Rejects):
            return Rejects(0, tuple(reject for reject in item.rows if reject.row % self.stride == 0), item.node)
        if self.stride == 1:
            return Batch(0, item.data)
        rows = np.asarray(item.data.column(ROW.name))
        return Batch(0, item.data.filter(pa.array(rows % self.stride == 0)))


def sample_of(
    source: Operator, first_chunk: int, first_row: int, chunk_rows: int, clock: Clock = time.monotonic
) -> InputSample:
    """Return a sample of about ROWS rows from `first_row` on, or of all rows if there are fewer. A `source` that can
    seek, opened by now, is read at several positions."""
    sample, until = InputSample(), clock() + PATIENCE_S
    total = source.total_rows() if isinstance(source, Source) else None
    if first_chunk and not isinstance(source, Source):
        raise ConfigError(f"{type(source).__name__} has no seek(chunk), so the run cannot be resumed: overwrite=true")
    if not isinstance(source, Source) or total is None or total - first_row <= FEW_ROWS:
        if isinstance(source, Source) and first_chunk:
            source.seek(first_chunk)
        sample.rows, sample.how = _read_on(source, sample, total, first_row, until, clock)
        return sample
    last = (total - 1) // chunk_rows
    chunks = sorted({first_chunk + (last - first_chunk) * i // (PLACES - 1) for i in range(PLACES)})
    read = 0
    for chunk in chunks:
        source.seek(chunk)
        enough = sample.seen + PLACE_ROWS
        for item in source.run(ListInbox()):
            sample.take(item)
            if sample.seen >= enough:
                break
        read += 1
        if clock() > until:
            break
    sample.rows = Range.exact(total - first_row)
    sample.how = f"from {read} places {'all over the input' if read == len(chunks) else 'of its beginning'}"
    return sample


def _read_on(
    source: Operator, sample: InputSample, total: int | None, first_row: int, until: float, clock: Clock
) -> tuple[Range, str]:
    """Take rows from the current position on until the time `until`; return how many there are, and how they were
    taken."""
    # A source updates its share when it continues after an item, so a new share is that of the rows before this item.
    share = source.fraction_read if isinstance(source, Source) else lambda: None
    now = share()
    rows = 0
    fraction: float | None = None
    for item in source.run(ListInbox()):
        before, now = now, share()
        if now != before:
            rows, fraction = sample.seen, now
        if clock() > until and sample.seen >= ROWS and (total is not None or now is None or fraction):
            break
        sample.take(item)
    else:
        return Range.exact(sample.seen), "all there are" if sample.stride == 1 else "spread over the whole input"
    how = f"spread over its first {sample.seen:,} rows"
    if total is not None:
        return Range.exact(total - first_row), how
    if not fraction:
        how += "; the source does not say how many there are"
        return Range(sample.seen, sample.seen, math.inf), how
    # Later rows may be longer or shorter than the first ones: the less was read, the larger the error.
    likely = (first_row + rows) / min(fraction, 1.0) - first_row
    doubt = max(LEAST_DOUBT, MOST_DOUBT * (1 - fraction))
    least = max(likely * (1 - doubt), sample.seen)
    counted = Range(least, max(likely, least), max(likely * (1 + doubt), least))
    return counted, f"{how}; how many follow is told by their bytes"
