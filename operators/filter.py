"""Filter: keeps the rows for which a condition in SQL is true."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import polars as pl
import pyarrow as pa
from polars.exceptions import ColumnNotFoundError, PolarsError, SQLInterfaceError, SQLSyntaxError

from pipeline.errors import ConfigError, SchemaError
from pipeline.protocols import BaseOperator
from pipeline.records import Batch, Output, RejectKind

BEYOND_THE_ROW = re.compile(
    r"\b(avg|corr|count|covar\w*|first|last|max|median|min|quantile\w*|std\w*|sum|var\w*)\s*\(|\b(over|select)\b", re.I
)


class Filter(BaseOperator):
    """Keeps rows for which `where` is true; those for which it is false or null become rejects of kind `filtered`.

    Args:
        where: a condition on one row, in the SQL of polars: `length(completion) > 3 AND finish_reason = 'stop'`.

    Raises:
        ConfigError: `where` looks beyond its row (avg, OVER ...): what is kept would depend on how rows are batched.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        beyond = BEYOND_THE_ROW.search(re.sub(r"'[^']*'|\"[^\"]*\"", "", where))
        if beyond:
            raise ConfigError(
                f"where={where!r} looks beyond its row with '{beyond.group()}'; a filter's condition is about one row"
            )

    def plan(self, schema: pa.Schema) -> pa.Schema:
        """Leaves the columns as they are.

        Raises:
            ConfigError: the condition is not SQL.
            SchemaError: it names an unknown column, does not fit the types, or is not true or false.
        """
        kind = self._checked(schema)
        # A column is used if nothing works without it: the others need not be converted for each batch.
        self._columns = [name for name in schema.names if not self._works_without(schema, name)]
        if not self._columns:
            raise SchemaError(f"where={self._where!r} names no column; the columns are {', '.join(schema.names)}")
        if kind != pl.Boolean:
            raise SchemaError(f"where={self._where!r} gives {kind}, not true or false; compare it with something")
        return schema

    def process(self, batch: Batch) -> Iterable[Output]:
        """Split the batch."""
        keep = self._evaluate(batch.data.select(self._columns)).fill_null(False).to_numpy()
        out = np.flatnonzero(~keep)
        if not len(out):
            yield batch
            return
        yield batch.reject(out.tolist(), f"where: {self._where}", RejectKind.FILTERED)
        if len(out) < batch.num_rows:
            yield batch.with_data(batch.data.take(pa.array(np.flatnonzero(keep))))

    def _checked(self, schema: pa.Schema) -> pl.DataType:
        try:
            return self._evaluate(_no_rows(schema)).dtype
        except ColumnNotFoundError as error:
            what = str(error).partition(";")[0]
            raise SchemaError(f"where={self._where!r}: {what}; the columns are {', '.join(schema.names)}") from error
        except (SQLSyntaxError, SQLInterfaceError) as error:
            raise ConfigError(f"where={self._where!r} is not a condition in SQL: {error}") from error
        except PolarsError as error:
            raise SchemaError(f"where={self._where!r} does not fit the columns: {error}") from error

    def _works_without(self, schema: pa.Schema, name: str) -> bool:
        try:
            self._evaluate(_no_rows(pa.schema([f for f in schema if f.name != name])))
        except PolarsError:
            return False
        return True

    def _evaluate(self, data: pa.RecordBatch) -> pl.Series:
        # sql_expr would do without the SELECT, but knows no IN.
        frame = pl.DataFrame(pl.from_arrow(data))
        return frame.sql(f"SELECT ({self._where}\n) AS keep FROM self")["keep"]


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)
