"""RejectWriter: a sink that every node feeds; it writes one file for each chunk with rejects."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from pipeline.api.protocols import Inbox, Operator
from pipeline.api.records import KEPT, REJECT_SCHEMA, ChunkEnd, Item, RejectFiles, RejectKind, Rejects, Shard
from pipeline.system.atomic_files import part_name, sorted_by_identity, write_parquet, write_table_shard
from pipeline.system.known_secrets import hidden

MAX_REASONS = 100
OTHER_ROWS = (
    (r"\brow \d+(?:, lineage \[[\d, ]*\],)?", "row N"),
    (r"\b\d+(?:\.\d+)? like row N", "N like row N"),
)
"""Patterns of another row and of the likeness to it in the reason of a reject (Dedup), each with its placeholder."""
_KEPT = r"UTF-\d+|\bthe server \w+://\S+|\bsays \d{3}:"
VALUES_OF_A_ROW = (
    (r"'[^']*'", "'…'"),
    (rf"({_KEPT})|\d+(?:,\d{{3}})*(?:\.\d+)?", r"\1N"),
    (rf"({_KEPT})N", r"\1"),
)
"""Patterns of values in the reason of an error, each with its placeholder: reasons are counted without their values.
Numbers of what is no value (an encoding, a server, its status) stay; polars has no look-behind to exclude them."""
PLACEHOLDER = re.compile(r"\bN\b|'…'")
"""What stands for a value of a row in the counted reason of an error."""


class RejectTally:
    """Counts rejects, and rows that stay with an error, by node, kind and reason, where reasons that differ only in
    another row that they name or, if they are errors, in numbers or quoted values are one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of by_reason; nodes take it inside the committer's, the reject writer alone
        self.by_reason: Counter[tuple[str, str, str]] = Counter()
        self.errors = 0
        """Rows rejected because of an error."""
        self.filtered = 0
        """Rows that an operator filtered out."""
        self.kept = 0
        """Errors of rows that stay, at the ends of chunks."""

    def know(self, reasons: Iterable[tuple[str, str, str]]) -> None:
        """Take the reasons of earlier attempts into the MAX_REASONS of the run."""
        self.by_reason.update(dict.fromkeys(reasons, 0))

    def add(self, rejects: Rejects) -> Counter[tuple[str, str, str]]:
        """Count the rows of `rejects`. Returns their counts by (node, kind, reason)."""
        errors = sum(reject.kind is RejectKind.ERROR for reject in rejects.rows)
        self.errors += errors
        self.filtered += rejects.num_rows - errors
        by_kind = Counter((reject.kind, reject.reason) for reject in rejects.rows)
        return self._count(rejects.node, ((k.value, _counted_as(k, why), n) for (k, why), n in by_kind.items()))

    def keep(self, node: str, reasons: Mapping[str, int]) -> Counter[tuple[str, str, str]]:
        """Count rows that stay with an error at `node`, by reason, as `add` does."""
        self.kept += sum(reasons.values())  # the committer's lock is held
        return self._count(node, ((KEPT, counted_error(why), n) for why, n in reasons.items()))

    def _count(self, node: str, reasons: Iterable[tuple[str, str, int]]) -> Counter[tuple[str, str, str]]:
        found: Counter[tuple[str, str, str]] = Counter()
        with self._lock:
            for kind, reason, rows in reasons:
                key = (node, kind, reason)
                if key not in self.by_reason and len(self.by_reason) >= MAX_REASONS:
                    key = (node, kind, "(other reasons)")
                self.by_reason[key] += rows
                found[key] += rows
        return found


def without_other_rows(reason: str) -> str:
    """Return `reason` with placeholders for another row that it names."""
    return _replaced(reason, OTHER_ROWS)


def _counted_as(kind: RejectKind, reason: str) -> str:
    """Return a reason with placeholders for its values; that of a filter, which the user wrote, keeps its own."""
    return counted_error(reason) if kind is RejectKind.ERROR else without_other_rows(reason)


def counted_error(reason: str) -> str:
    """Return the reason of an error with placeholders for its values."""
    return _replaced(without_other_rows(reason), VALUES_OF_A_ROW)


def _replaced(text: str, patterns: Sequence[tuple[str, str]]) -> str:
    for pattern, instead in patterns:
        text = re.sub(pattern, instead, text)
    return text


class RejectWriter(Operator):
    """Writes rejects/part-NNNNN.parquet under REJECT_SCHEMA, sorted by (row, lineage). `files`: in place of Parquet."""

    def __init__(self, directory: Path, tally: RejectTally, files: RejectFiles | None = None) -> None:
        self._directory = directory
        self._ending, self._write = files or ("parquet", write_parquet)
        self._tally = tally
        self._batches: dict[int, list[pa.RecordBatch]] = {}
        self._counts: dict[int, Counter[tuple[str, str, str]]] = {}

    def plan(self) -> None:
        pass

    def run(self, inbox: Inbox) -> Iterator[Item | Shard]:
        for item in inbox:
            if isinstance(item, Rejects):
                if any(hidden(reason) != reason for reason in {reject.reason for reject in item.rows}):
                    item = replace(item, rows=tuple(replace(r, reason=hidden(r.reason)) for r in item.rows))
                self._counts.setdefault(item.chunk, Counter()).update(self._tally.add(item))
                self._batches.setdefault(item.chunk, []).append(item.to_arrow())
            elif isinstance(item, ChunkEnd):
                if batches := self._batches.pop(item.chunk, None):
                    table = sorted_by_identity(pa.Table.from_batches(batches, REJECT_SCHEMA))
                    path = self._directory / part_name(item.chunk, self._ending)
                    shard = write_table_shard(table, path, item.chunk, self._write)
                    yield replace(shard, rejects=self._counts.pop(item.chunk))
                yield item
