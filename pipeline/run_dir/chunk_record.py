"""ChunkRecord: the parts of a chunk, from the first node that ends it until it is committed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.api.meter import RowCounts
from pipeline.api.records import RejectKind, Shard


class RejectCounts(Counter[tuple[str, str, str]]):
    """Rejected rows by (node, kind, reason)."""

    @property
    def errors(self) -> int:
        """Rows that were rejected because something was wrong with them."""
        return sum(n for (_, kind, _), n in self.items() if kind == RejectKind.ERROR)

    @property
    def filtered(self) -> int:
        """Rows that an operator left out on purpose."""
        return self.total() - self.errors


class OperatorState(NamedTuple):
    """The memory of an operator as of a chunk. `append`: in addition to what it kept before, not instead of it."""

    value: bytes
    append: bool = False


@dataclass
class ChunkRecord:
    """All that is committed of a chunk, in one transaction.

    Args:
        chunk: its number.
        rows: source rows in it.
        shards: its files, under temporary names.
        rejects: its rejected rows.
        states: by node, what the operators that keep a state remember as of this chunk.
        counts: by node, what became of its rows; only of nodes that have ended it.
    """

    chunk: int
    rows: int
    shards: list[Shard] = field(default_factory=list)
    rejects: RejectCounts = field(default_factory=RejectCounts)
    states: dict[str, OperatorState] = field(default_factory=dict)
    counts: dict[str, RowCounts] = field(default_factory=dict)
