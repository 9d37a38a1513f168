"""SQL over the columns of one row, as job files write it; and `where`, which selects rows by it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa
from polars.exceptions import ColumnNotFoundError, PanicException, PolarsError, SQLInterfaceError, SQLSyntaxError

from operators.rows.batches import set_apart
from operators.rows.polars_frames import known_to_polars
from operators.rows.sql_numbers import ExactExpression, evaluate
from operators.rows.times import rows_beyond, times_of_polars
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.forecast import Forecast, Task, share
from pipeline.api.records import Batch, Rejects, python_values

_BEYOND_THE_ROW = re.compile(
    r"\b(array_agg|avg|corr|count|covar\w*|first\w*|last\w*|listagg|max|median|min|quantile\w*|row_number|std\w*"
    r"|string_agg|sum|unnest|var\w*)\s*\("
    r"|\b(over|select)\b",
    re.I,
)
_CLOCK = re.compile(r"\bnow\s*\(|\b(current_date|current_time|current_timestamp|localtime|localtimestamp)\b", re.I)

_PADDED = re.compile(r"\b[lr]pad\s*\([^()]*,\s*(\d{7,})", re.I)
_MOST_TERMS = 1000
"""Terms joined by AND and OR in an expression: polars plans them in quadratic time, for each column once."""


class RowExpression:
    """An expression in the SQL of polars, evaluated for each row of a batch.

    Args:
        key: how the job file calls it, for errors.
        text: the expression.

    Raises:
        ConfigError: it looks beyond its row (avg, OVER ...): its value would depend on how rows are batched. Or at the
            clock: a resumed run would give other values. Or it takes more time or memory than a row may.
    """

    def __init__(self, key: str, text: str) -> None:
        self._name = f"{key}={text!r}"
        self._text = text
        bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", text)
        if beyond := _BEYOND_THE_ROW.search(bare):
            raise ConfigError(
                f"{self._name} looks beyond its row with '{beyond.group()}'; such an expression is about one row"
            )
        if clock := _CLOCK.search(bare):
            raise ConfigError(
                f"{self._name} looks at the clock with '{clock.group()}', and a resumed run would give other values;"
                " write the date out: DATE('2026-01-31'), or '${now:%Y-%m-%d}' for the day on which the run began"
            )
        if padded := _PADDED.search(bare):
            raise ConfigError(f"{self._name} pads texts to {padded[1]} characters, which no row has room for")
        if (terms := 1 + len(re.findall(r"\b(?:and|or)\b", bare, re.I))) > _MOST_TERMS:
            raise ConfigError(
                f"{key} has {terms:,} terms joined by AND and OR, and {_MOST_TERMS:,} may be; `column IN (...)` takes"
                " any number of values"
            )

    def plan(
        self, schema: pa.Schema, fits: Callable[[pl.DataType], bool], wanted: str, *, constants: bool = False
    ) -> pa.DataType:
        """Check the expression against the columns, and find which it uses. Return the Arrow type of its values.

        `fits` accepts a type, and `wanted` names those that it accepts. `constants`: one value for all rows is meant.

        Raises:
            ConfigError: it is not SQL.
            SchemaError: it names an unknown column, or none although `constants` is false, or its type does not fit.
        """
        self._unknown = {f.name: f.type for f in schema if not known_to_polars(f.type)}
        schema = pa.schema([f for f in schema if f.name not in self._unknown])
        self._check(schema)
        # A column is used if the expression fails without it. Only used columns are converted for each batch.
        self._columns = [name for name in schema.names if not self._works_without(schema, name)]
        if not self._columns and not constants:
            names = ", ".join(schema.names)
            raise SchemaError(f"{self._name} names no column and is the same for all rows; the columns are {names}")
        self._exact = ExactExpression(_frame(_no_rows(schema)).select(self._columns), self._text)
        if not fits(kind := self._exact.kind):
            raise SchemaError(f"{self._name} gives {kind}, not {wanted}")
        return pl.Series(dtype=kind).to_arrow().type

    @property
    def keeps_decimals(self) -> bool:
        """Whether decimals are meant: a column has them, or the expression names them."""
        return self._exact.keeps_decimals

    def beyond(self, data: pa.RecordBatch) -> dict[int, str]:
        """Return the indices of rows with a time that SQL cannot hold, each with the reason."""
        reasons: dict[int, str] = {}
        for name in self._columns:
            for row in rows_beyond(data.column(name), times_of_polars):
                value = python_values(data.column(name).slice(row, 1))[0]
                reasons[row] = f"{self._name}: column '{name}' has {value}, which is too far for SQL"
        return reasons

    def values(self, data: pa.RecordBatch) -> pl.Series:
        """Evaluate the expression for each row, none of them `beyond`; raise ValueError if one fails."""
        try:
            used = data.select(self._columns) if self._columns else pa.record_batch({"row": pa.nulls(data.num_rows)})
            computed = self._exact.values(_frame(used))
        except (PolarsError, PanicException) as error:
            raise ValueError(f"{self._name}: {_without_plan(error)}") from error
        if len(computed) != data.num_rows:
            raise ValueError(
                f"{self._name} gives {len(computed)} values for {data.num_rows} rows; it must give one a row"
            )
        return computed

    def _check(self, schema: pa.Schema) -> None:
        try:
            evaluate(_frame(_no_rows(schema)), self._text)
        except ColumnNotFoundError as error:
            problem, columns = str(error).partition(";")[0], ", ".join(schema.names)
            quoted = re.search(r'column "(.*)"', problem)
            if quoted and quoted[1] in self._unknown:
                raise SchemaError(
                    f"{self._name}: column '{quoted[1]}' has type {self._unknown[quoted[1]]}, which SQL does not know;"
                    " a template can read it (operators.map.Map, templates)"
                ) from error
            if quoted and quoted[0].removeprefix("column ") in self._text:
                columns += f"; a text takes single quotes: '{quoted[1]}'"
            raise SchemaError(f"{self._name}: {problem}; the columns are {columns}") from error
        except (SQLSyntaxError, SQLInterfaceError) as error:
            raise ConfigError(f"{self._name} is not an expression in SQL: {_without_plan(error)}") from error
        except PolarsError as error:
            texts = [
                f.name for f in schema if f.type == pa.string() and re.search(rf"\b{re.escape(f.name)}\b", self._text)
            ]
            hint = f"; '{texts[0]}' has texts: data.types={{{texts[0]}: double}} reads numbers" if texts else ""
            raise SchemaError(f"{self._name} does not fit the columns: {_without_plan(error)}{hint}") from error

    def _works_without(self, schema: pa.Schema, name: str) -> bool:
        try:
            evaluate(_frame(_no_rows(pa.schema([f for f in schema if f.name != name]))), self._text)
        except PolarsError:
            return False
        return True


class Where:
    """Splits batches by a condition on one row, in the SQL of polars; without one, all rows are worked on."""

    def __init__(self, text: str | None) -> None:
        self._condition = None if text is None else RowExpression("where", text)

    def plan(self, schema: pa.Schema) -> None:
        """Check the condition against the columns, as RowExpression does."""
        if self._condition is not None:
            self._condition.plan(schema, lambda kind: kind == pl.Boolean, "true or false; compare it with something")

    def split(self, batch: Batch) -> tuple[Batch, Batch, list[Rejects]]:
        """Return the rows to process, those for which the condition is false or null, and rejects of those for which it
        cannot be evaluated."""
        beyond = {} if self._condition is None else self._condition.beyond(batch.data)
        rejects, batch = set_apart(batch, beyond)
        if self._condition is None or not batch.num_rows:
            return batch, batch.with_data(batch.data.slice(0, 0)), rejects
        holds = self._condition.values(batch.data).fill_null(False).to_numpy()
        if holds.all():
            return batch, batch.with_data(batch.data.slice(0, 0)), rejects
        chosen, others = (pa.array(np.flatnonzero(which), pa.int64()) for which in (holds, ~holds))
        return batch.with_data(batch.data.take(chosen)), batch.with_data(batch.data.take(others)), rejects

    def chosen(self, batch: Batch, kept: Collection[str], schema: pa.Schema) -> tuple[Batch, list[Batch | Rejects]]:
        """Return the rows to process, and what passes by: rejects, and the other rows under `schema`, the columns
        `kept` as they are and nulls in all others."""
        batch, others, beyond = self.split(batch)
        return batch, [*beyond, *([_passed_by(others, kept, schema)] if others.num_rows else [])]

    def forecast(
        self,
        batches: Sequence[Batch],
        task: Task,
        of_own: Callable[[Sequence[Batch], Task], Forecast],
        kept: Collection[str],
        schema: pa.Schema,
    ) -> Forecast:
        """Forecast `task` by `of_own` for the chosen rows; the others pass by (`chosen`) and take no time."""
        parts = [self.split(batch) for batch in batches]
        to_process = [chosen for chosen, _, _ in parts if chosen.num_rows]
        part = share(sum(b.num_rows for b in to_process), sum(b.num_rows for b in batches))
        result = of_own(to_process, replace(task, rows=task.rows.times(part)))
        left = [_passed_by(others, kept, schema) for _, others, _ in parts if others.num_rows]
        return replace(result, rows_out=result.rows_out + task.rows.times(1 - part), output=[*result.output, *left])


def _passed_by(batch: Batch, kept: Collection[str], schema: pa.Schema) -> Batch:
    data = batch.data
    columns = [
        data.column(field.name)
        if field.name in kept and field.name in data.schema.names
        else pa.nulls(data.num_rows, field.type)
        for field in schema
    ]
    return batch.with_data(pa.record_batch(columns, schema=schema))


def _without_plan(error: BaseException) -> str:
    return str(error).partition("\n\nResolved plan")[0].partition("\n\nThis error occurred")[0]


def _frame(data: pa.RecordBatch) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(data))


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)
