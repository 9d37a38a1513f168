"""Map: computes columns from other columns of the same row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl
import pyarrow as pa

from operators.prompts.columns import used_columns
from operators.prompts.template import Template, reason_of
from operators.rows.arrow_types import plain_type
from operators.rows.lineage import refuse_identity
from operators.rows.sql import RowExpression, Where
from operators.settings.checks import check
from pipeline.api import Batch, ConfigError, Operator, Output, Scope
from pipeline.api.machine_errors import of_machine
from pipeline.api.records import python_rows

_NUMBER = re.compile(
    r"(?<![\d.])(?<!\d,)(?<!\d[eE])(?<!\d[eE][+-])"
    r"(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\d\u00bc-\u00be\u2150-\u215f]|[.,]\d|[eE][+-]?\d)"
    r"(?:\s*(?:/|(?:out )?of)\s*\d+(?:\.\d+)?)?"
)
"""A number as English writes it. `1,5` and `4\u00bd` have none: what is written so is not guessed."""


class Map(Operator):
    """Adds columns, or replaces those of the same name in their place. Each is made of the columns of its row as they
    come in: an expression does not see what the others make.

    An expression that cannot be computed of a row (CAST of a text that is no number; TRY_CAST gives null) fails as the
    node's `on_error` says. Whole numbers are computed with in 128 bits, and what comes out has 64: none wraps around,
    and one beyond fails. Fractions are doubles, but beside decimals of a column or of a CAST.

    A template that cannot be rendered (it prints a null) makes its row a reject.

    Args:
        columns: name to an expression in the SQL of polars, about one row, or to a constant: `"'a text'"`.
        templates: name to a Jinja template over the columns, which gives a text.
        numbers: name to {template, least, most}: the last number in the text that the template gives (of `4/5` and
            `4 out of 5` the 4; of `1,5` and `4½` none), as a double. A row without one between `least` and `most` is a
            reject.
        where: a condition in SQL on a row's columns. For rows for which it is false or null nothing is made: these
            columns are null.

    Raises:
        ConfigError: none of them is given, two give a column, a column is `row` or `lineage`, an expression looks
            beyond its row, or a template does not compile.

    Example:
        shape:
          inputs: read
          op:
            _target_: operators.map.Map
            columns:
              words: ARRAY_LENGTH(STRING_TO_ARRAY(text, ' '))
              language: COALESCE(language, 'en')
            templates:
              prompt: "Translate from {{ language }}: {{ text }}"
    """

    scope = Scope.ROW

    def __init__(
        self,
        columns: dict[str, str] | None = None,
        templates: dict[str, str] | None = None,
        numbers: dict[str, dict[str, Any]] | None = None,
        where: str | None = None,
    ) -> None:
        names = [*(columns or {}), *(templates or {}), *(numbers or {})]
        check(bool(names), "columns", columns, "give columns, templates or numbers")
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"'{twice[0]}' is made twice: in columns, templates or numbers; keep one of them")
        refuse_identity(names, "made; use another name")
        self._new_columns: dict[str, _Expression | _Text] = {
            n: _Expression(f"columns.{n}", text) for n, text in (columns or {}).items()
        }
        self._new_columns |= {n: _Text(f"templates.{n}", text) for n, text in (templates or {}).items()}
        self._new_columns |= {n: _Number(f"numbers.{n}", keys) for n, keys in (numbers or {}).items()}
        self._where = Where(where)

    def plan(self, schema: pa.Schema) -> pa.Schema:
        self._where.plan(schema)
        self._kept = [name for name in schema.names if name not in self._new_columns]
        new_fields = {name: pa.field(name, column.plan(schema)) for name, column in self._new_columns.items()}
        self._schema = pa.schema([*(new_fields.pop(f.name, f) for f in schema), *new_fields.values()])
        return self._schema

    def process(self, batch: Batch) -> Iterable[Output]:
        batch, beside = self._where.chosen(batch, self._kept, self._schema)
        yield from beside
        failed: dict[int, str] = {}
        arrays = {name: column.values(batch.data, failed) for name, column in self._new_columns.items()}
        columns = [arrays[f.name].cast(f.type) if f.name in arrays else batch.data.column(f.name) for f in self._schema]
        data = pa.record_batch(columns, schema=self._schema)
        if failed:
            yield batch.reject(sorted(failed), [failed[i] for i in sorted(failed)])
            data = data.take(pa.array([i for i in range(batch.num_rows) if i not in failed], pa.int64()))
        if data.num_rows or not (failed or beside):
            yield batch.with_data(data)


class _Expression:
    def __init__(self, key: str, text: str) -> None:
        self._expression = RowExpression(key, text)

    def plan(self, schema: pa.Schema) -> pa.DataType:
        wanted = "a type that can be written; CAST it"
        arrow_type = self._expression.plan(schema, lambda k: k not in (pl.Null, pl.Object), wanted, constants=True)
        kind = plain_type(arrow_type)
        # polars parses 0.5 in SQL as a decimal, whose digits differ by version; a double is meant.
        return pa.float64() if pa.types.is_decimal(kind) and not self._expression.keeps_decimals else kind

    def values(self, data: pa.RecordBatch, failed: dict[int, str]) -> pa.Array:
        if not (beyond := self._expression.beyond(data)):
            return self._expression.values(data).to_arrow()
        failed |= {i: why for i, why in beyond.items() if i not in failed}
        rows = [i for i in range(data.num_rows) if i not in beyond]
        places = {row: place for place, row in enumerate(rows)}
        computed = self._expression.values(data.take(pa.array(rows, pa.int64()))).to_arrow()
        return computed.take(pa.array([places.get(i) for i in range(data.num_rows)], pa.int64()))


class _Text:
    """A column made by a template. `values` notes in `failed` why a row has no text."""

    def __init__(self, key: str, source: str) -> None:
        self._template = Template(source, key, strict=True)

    def plan(self, schema: pa.Schema) -> pa.DataType:
        self._columns = used_columns(self._template, schema)
        return pa.string()

    def values(self, data: pa.RecordBatch, failed: dict[int, str]) -> pa.Array:
        texts: list[str | None] = [None] * data.num_rows
        for i, row in enumerate(python_rows(data.select(self._columns))):
            try:
                texts[i] = self._template.render(row)
            except Exception as error:  # an expression of the template may raise anything
                if of_machine(error):
                    raise
                failed.setdefault(i, reason_of(error, self._template.name))
        return pa.array(texts, pa.string())


class _Number(_Text):
    """A column of the last number in the text of a template, double."""

    def __init__(self, key: str, keys: Mapping[str, Any]) -> None:
        if set(keys) != {"template", "least", "most"}:
            raise ConfigError(f"{key} has the keys {', '.join(keys)}; write {{template: '...', least: 1, most: 5}}")
        super().__init__(key, keys["template"])
        self._least, self._most = float(keys["least"]), float(keys["most"])

    def plan(self, schema: pa.Schema) -> pa.DataType:
        super().plan(schema)
        return pa.float64()

    def values(self, data: pa.RecordBatch, failed: dict[int, str]) -> pa.Array:
        numbers = [None if text is None else self._last(text) for text in super().values(data, failed).to_pylist()]
        for i, number in enumerate(numbers):
            if number is None:
                failed.setdefault(i, f"{self._template.name}: no number between {self._least:g} and {self._most:g}")
        return pa.array(numbers, pa.float64())

    def _last(self, text: str) -> float | None:
        numbers = [float(number.replace(",", "")) for number in _NUMBER.findall(text)[-1:]]
        return next((number for number in numbers if self._least <= number <= self._most), None)
