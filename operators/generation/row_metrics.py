"""What is kept of every completion: a row of metrics/rows.parquet."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pyarrow as pa

from operators.engine.sequence import Sequence
from pipeline.api.protocols import Table

ROWS_SCHEMA = pa.schema(
    [
        pa.field("node", pa.string()),
        pa.field("row", pa.int64()),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("completion_tokens", pa.int32()),
        pa.field("queued_s", pa.float64()),
        pa.field("prefill_s", pa.float64()),
        pa.field("decode_s", pa.float64()),
        pa.field("shared_tokens", pa.int32()),
        pa.field("preemptions", pa.int32()),
        pa.field("from_store", pa.bool_()),
        pa.field("identical", pa.bool_()),
    ]
)


class RowLog:
    """The completions of one node.

    Args:
        table: metrics/rows.parquet; shared by the nodes that generate.
        node: the node's name.
    """

    def __init__(self, table: Table, node: str) -> None:
        self._table = table
        self._node = node

    def add(self, rows: Seq[Sequence], numbers: Seq[int], *, from_store: bool = False, identical: bool = False) -> None:
        """`rows` are finished; `numbers` are their positions in the source."""
        if not rows:
            return
        firsts = [row.times.first_token or row.times.finished for row in rows]
        columns: tuple[Seq[object], ...] = (
            [self._node] * len(rows),
            numbers,
            [len(row.prompt) for row in rows],
            [len(row.tokens) for row in rows],
            [row.times.admitted - row.times.queued for row in rows],
            [first - row.times.admitted for row, first in zip(rows, firsts, strict=True)],
            [row.times.finished - first for row, first in zip(rows, firsts, strict=True)],
            [row.placement.shared_tokens for row in rows],
            [row.placement.preemptions for row in rows],
            [from_store] * len(rows),
            [identical] * len(rows),
        )
        self._table.extend(columns)
