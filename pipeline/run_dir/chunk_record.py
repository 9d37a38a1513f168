"""ChunkRecord: everything that is committed with a chunk."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.api.meter import RowCounts
from pipeline.api.records import KEPT, RejectKind, Shard


class RejectCounts(Counter[tuple[str, str, str]]):
    """Rejected rows, and rows that stay with an error (KEPT), by (node, kind, reason)."""

    @property
    def errors(self) -> int:
        """Rows rejected because of an error."""
        return sum(n for (_, kind, _), n in self.items() if kind == RejectKind.ERROR)

    @property
    def filtered(self) -> int:
        """Rows that an operator filtered out."""
        return sum(n for (_, kind, _), n in self.items() if kind == RejectKind.FILTERED)

    @property
    def kept(self) -> int:
        """Errors of rows that stay (`on_error: keep`)."""
        return sum(n for (_, kind, _), n in self.items() if kind == KEPT)

    @property
    def failures(self) -> int:
        """What counts towards `max_error_rate`: errors of rows that left and of rows that stay."""
        return self.errors + self.kept

    def listed(self) -> list[dict[str, object]]:
        """Return them as JSON values, as in manifest.json."""
        return [{"node": node, "kind": kind, "reason": why, "rows": n} for (node, kind, why), n in self.items()]


class OperatorState(NamedTuple):
    """State of an operator after a chunk. `append`: keep the states of earlier chunks too."""

    value: bytes
    append: bool = False


@dataclass
class ChunkRecord:
    """Everything that is committed with a chunk, in one transaction.

    Args:
        chunk: number of the chunk.
        rows: source rows in it.
        shards: its files, under temporary names.
        rejects: its rejected rows.
        states: by node, the states of stateful operators after this chunk.
        counts: by node, the row counts in this chunk; only of nodes that have ended it.
    """

    chunk: int
    rows: int
    shards: list[Shard] = field(default_factory=list)
    rejects: RejectCounts = field(default_factory=RejectCounts)
    states: dict[str, OperatorState] = field(default_factory=dict)
    counts: dict[str, RowCounts] = field(default_factory=dict)
