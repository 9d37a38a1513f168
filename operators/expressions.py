"""SQL over the columns of one row, as job files write it."""

from __future__ import annotations

import re
from collections.abc import Callable

import polars as pl
import pyarrow as pa
from polars.exceptions import ColumnNotFoundError, PolarsError, SQLInterfaceError, SQLSyntaxError

from pipeline.errors import ConfigError, SchemaError

_BEYOND_THE_ROW = re.compile(
    r"\b(array_agg|avg|corr|count|covar\w*|first|last|max|median|min|quantile\w*|std\w*|sum|unnest|var\w*)\s*\("
    r"|\b(over|select)\b",
    re.I,
)


class RowExpression:
    """An expression in the SQL of polars, evaluated for each row of a batch.

    Args:
        key: how the job file calls it, for errors.
        text: the expression.

    Raises:
        ConfigError: it looks beyond its row (avg, OVER ...): its value would depend on how rows are batched.
    """

    def __init__(self, key: str, text: str) -> None:
        self._name = f"{key}={text!r}"
        self._text = text
        beyond = _BEYOND_THE_ROW.search(re.sub(r"'[^']*'|\"[^\"]*\"", "", text))
        if beyond:
            raise ConfigError(
                f"{self._name} looks beyond its row with '{beyond.group()}'; such an expression is about one row"
            )

    def plan(self, schema: pa.Schema, fits: Callable[[pl.DataType], bool], wanted: str) -> pa.DataType:
        """Check it against the columns, and remember which it uses. Returns the type of its values in Arrow.

        Args:
            schema: the columns.
            fits: whether a type is accepted.
            wanted: in words what `fits` accepts.

        Raises:
            ConfigError: it is not SQL.
            SchemaError: it names an unknown column or none, or its type is not what is wanted.
        """
        kind = self._checked(schema)
        # A column is used if nothing works without it: the others need not be converted for each batch.
        self._columns = [name for name in schema.names if not self._works_without(schema, name)]
        if not self._columns:
            raise SchemaError(f"{self._name} names no column; the columns are {', '.join(schema.names)}")
        if not fits(kind):
            raise SchemaError(f"{self._name} gives {kind}, not {wanted}")
        return pl.Series(dtype=kind).to_arrow().type

    def values(self, data: pa.RecordBatch) -> pl.Series:
        """Its value for each row.

        Raises:
            ValueError: it cannot be computed of these rows (a text that is no number, say).
        """
        try:
            found = self._evaluate(data.select(self._columns))
        except PolarsError as error:
            raise ValueError(f"{self._name}: {error}") from error
        if len(found) != data.num_rows:
            raise ValueError(f"{self._name} gives {len(found)} values for {data.num_rows} rows; it must give one a row")
        return found

    def _checked(self, schema: pa.Schema) -> pl.DataType:
        try:
            return self._evaluate(_no_rows(schema)).dtype
        except ColumnNotFoundError as error:
            what = str(error).partition(";")[0]
            raise SchemaError(f"{self._name}: {what}; the columns are {', '.join(schema.names)}") from error
        except (SQLSyntaxError, SQLInterfaceError) as error:
            raise ConfigError(f"{self._name} is not an expression in SQL: {error}") from error
        except PolarsError as error:
            raise SchemaError(f"{self._name} does not fit the columns: {error}") from error

    def _works_without(self, schema: pa.Schema, name: str) -> bool:
        try:
            self._evaluate(_no_rows(pa.schema([f for f in schema if f.name != name])))
        except PolarsError:
            return False
        return True

    def _evaluate(self, data: pa.RecordBatch) -> pl.Series:
        # sql_expr would do without the SELECT, but knows no IN.
        frame = pl.DataFrame(pl.from_arrow(data))
        return frame.sql(f"SELECT ({self._text}\n) AS value FROM self")["value"]


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)
