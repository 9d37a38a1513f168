"""The reject writer: a sink that every node feeds, one file for each chunk that has rejects."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pipeline.api.protocols import Inbox, Runtime
from pipeline.api.records import REJECT_SCHEMA, ChunkEnd, Item, Reject, RejectKind, Rejects, Shard
from pipeline.system.atomic_files import part_name, sorted_by_identity, write_parquet_shard

MAX_REASONS = 100
VALUES_OF_A_ROW = ((r"'[^']*'", "'…'"), (r"\d+(?:,\d{3})*(?:\.\d+)?", "N"), ("UTF-N", "UTF-8"))
"""Patterns of what differs from row to row in the reason of an error, each with what stands in its place when reasons
are counted; last the one name with a number in it, given back: polars has no look-behind to spare it."""


class RejectTally:
    """Rejects counted by node, kind and reason; numbers and quoted values in a reason do not make it another reason."""

    def __init__(self) -> None:
        self.by_reason: Counter[tuple[str, str, str]] = Counter()
        self.errors = 0
        """Rows rejected because something was wrong with them."""
        self.filtered = 0
        """Rows that an operator left out on purpose."""
        self._by_chunk: dict[int, Counter[tuple[str, str, str]]] = {}

    def add(self, rejects: Rejects) -> None:
        """Count the rows of `rejects`."""
        chunk = self._by_chunk.setdefault(rejects.chunk, Counter())
        errors = sum(reject.kind is RejectKind.ERROR for reject in rejects.rows)
        self.errors += errors
        self.filtered += rejects.num_rows - errors
        for reject in rejects.rows:
            key = (rejects.node, reject.kind.value, _without_values(reject))
            key = key if key in self.by_reason or len(self.by_reason) < MAX_REASONS else _other(key)
            self.by_reason[key] += 1
            chunk[key] += 1

    def take(self, chunk: int) -> Counter[tuple[str, str, str]]:
        """The counts of one chunk that is being committed, by (node, kind, reason); handed out once."""
        return self._by_chunk.pop(chunk, Counter())


def _without_values(reject: Reject) -> str:
    """The reason of an error without the numbers and quoted values of its row; a filter's reason is the user's own."""
    if reject.kind is RejectKind.FILTERED:
        return reject.reason
    reason = reject.reason
    for pattern, instead in VALUES_OF_A_ROW:
        reason = re.sub(pattern, instead, reason)
    return reason


def _other(key: tuple[str, str, str]) -> tuple[str, str, str]:
    return key[0], key[1], "(other reasons)"


class RejectWriter:
    """Writes rejects/part-NNNNN.parquet under REJECT_SCHEMA, sorted by (row, lineage)."""

    def __init__(self, directory: Path, tally: RejectTally) -> None:
        self._directory = directory
        self._tally = tally
        self._open: dict[int, list[pa.RecordBatch]] = {}

    def run(self, inbox: Inbox) -> Iterator[Item | Shard]:
        """Collect rejects by chunk; write them at the chunk's end."""
        for item in inbox:
            if isinstance(item, Rejects):
                self._tally.add(item)
                self._open.setdefault(item.chunk, []).append(item.to_arrow())
            elif isinstance(item, ChunkEnd):
                batches = self._open.pop(item.chunk, [])
                if batches:
                    table = sorted_by_identity(pa.Table.from_batches(batches, REJECT_SCHEMA))
                    yield write_parquet_shard(table, self._directory / part_name(item.chunk), item.chunk)
                yield item

    def plan(self, *inputs: pa.Schema) -> None:
        """A sink."""

    def open(self, runtime: Runtime) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close."""
