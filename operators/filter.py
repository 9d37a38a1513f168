"""Filter: keeps the rows for which an SQL condition is true."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import pyarrow as pa

from operators.rows.batches import split
from operators.rows.sql import RowExpression
from pipeline.api.protocols import BaseOperator
from pipeline.api.records import Batch, Output


class Filter(BaseOperator):
    """Keeps rows for which `where` is true; those for which it is false or null become rejects of kind `filtered`.

    Args:
        where: a condition on one row, in the SQL of polars: `length(completion) > 3 AND finish_reason = 'stop'`.

    Raises:
        ConfigError: `where` looks beyond its row.

    Example:
        long_enough:
          inputs: generate
          op:
            _target_: operators.filter.Filter
            where: length(completion) > 20 AND finish_reason = 'stop'
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._condition = RowExpression("where", where)

    def plan(self, schema: pa.Schema) -> pa.Schema:
        """Leaves the columns as they are.

        Raises:
            ConfigError: the condition is not SQL.
            SchemaError: it names an unknown column, does not fit the types, or is not true or false.
        """
        wanted = "true or false; compare it with something"
        self._condition.plan(schema, lambda kind: kind == pl.Boolean, wanted)
        return schema

    def process(self, batch: Batch) -> Iterable[Output]:
        keep = self._condition.values(batch.data).fill_null(False).to_numpy()
        yield from split(batch, keep, f"where: {self._where}")
