"""Filter: keeps the rows for which an SQL condition is true."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from operators.rows.sql import Where
from pipeline.api import Batch, Operator, Output, RejectKind, Scope


class Filter(Operator):
    """Keeps rows for which `where` is true; those for which it is false or null become rejects of kind `filtered`.

    Args:
        where: a condition on one row, in the SQL of polars: `length(completion) > 3 AND finish_reason = 'stop'`.
        reason: what the rejects say, instead of the condition.

    Raises:
        ConfigError: `where` looks beyond its row.

    Example:
        long_enough:
          inputs: generate
          op:
            _target_: operators.filter.Filter
            where: length(completion) > 20 AND finish_reason = 'stop'
    """

    scope = Scope.ROW

    def __init__(self, where: str, reason: str | None = None) -> None:
        self._reason = reason or f"where: {where}"
        self._where = Where(where)

    def plan(self, schema: pa.Schema) -> pa.Schema:
        self._where.plan(schema)
        return schema

    def process(self, batch: Batch) -> Iterable[Output]:
        kept, others, beyond = self._where.split(batch)
        yield from beyond
        if others.num_rows:
            yield others.reject(range(others.num_rows), self._reason, RejectKind.FILTERED)
        if kept.num_rows or not (others.num_rows or beyond):
            yield kept
