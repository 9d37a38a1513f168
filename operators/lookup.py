"""Lookup: adds columns of a second table to the rows that match it by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from operators.rows.batches import split
from operators.rows.keyed_table import Integers, KeyedTable, kind_of_key
from operators.rows.lineage import IDENTITY, append_to_lineage, refuse_identity, with_lineage
from operators.settings.checks import check, check_one_of
from operators.settings.table import OF_PROMPTS, TableSettings, of_table
from operators.sources.table import TableReader
from pipeline.api import (
    LINEAGE,
    ROW,
    Batch,
    ConfigError,
    MemoryNeed,
    Operator,
    Output,
    Runtime,
    Scope,
    UsesModel,
    require_column,
)
from pipeline.api.errors import SchemaError, did_you_mean
from pipeline.api.keys import deciding_fields

HOWS = ("left", "inner", "semi", "anti", "cross")
MATCHES = ("rows", "first", "list")
PIECE_ROWS = 1024
"""Rows of a batch that goes on, and the elements at which a batch of lists ends."""


class Lookup(Operator, UsesModel):
    """Adds columns of a second table (a join): `table` is read into memory, and each row finds there the rows with its
    key, in the order of the table. A null is equal to nothing. Rows stay in their order, and none is lost: those
    without a match (`inner`, `semi`) and those with one (`anti`) become rejects of kind `filtered`.

    Whole numbers of any width can be equal; keys of other types have the same one on both sides. The content of the
    table counts for a resume, and workers check that theirs is the same.

    Args:
        table: path, format, types, separator, rename ...: what `data` takes to read files. The directory of an earlier
            run stands for its rows. `memory_limit` (1GiB) is the memory that it may take; of a larger
            table the columns are read from a temporary file.
        on: the columns that are the key: a name, a list of names, or {column: column of the table}. Not with cross.
        columns: columns of the table to add; null: all but the key (and but `row` and `lineage`, of a run's rows).
        how: left (a row without a match stays, with nulls), inner (it leaves), semi and anti (nothing is added; rows
            with a match stay, or those without one), cross (each row of the table matches).
        matches: what several matches become. rows (each is a row, whose number, from 0, is appended to `lineage`),
            first (the others are left out) or list (each new column is a list; null without a match).
        prefix: of the names of the new columns.

    Raises:
        ConfigError: arguments that do not go together.
        SchemaError: a column is not there, or is there already; or the types of keys differ.

    Example:
        personas:
          inputs: read
          op:
            _target_: operators.lookup.Lookup
            table: {path: personas.csv}
            on: {topic: name}
            columns: [persona]
            how: left
    """

    scope = Scope.ROW
    told_by_fingerprint = ("table",)

    def __init__(
        self,
        table: TableSettings,
        on: dict[str, str] | list[str] | str | None = None,
        columns: list[str] | None = None,
        how: str = "left",
        matches: str = "rows",
        prefix: str = "",
    ) -> None:
        check_one_of("how", how, HOWS)
        check_one_of("matches", matches, MATCHES)
        names = [on] if isinstance(on, str) else on or []
        self._on = dict(names) if isinstance(names, dict) else {name: name for name in names}
        if bool(self._on) == (how == "cross"):
            raise ConfigError(
                "how: cross takes no key; leave on out"
                if self._on
                else f"how: {how} needs a key; write on: NAME, or on: {{column: column of the table}}"
            )
        self._adds = how not in ("semi", "anti")
        if not self._adds and (columns or matches != "rows" or prefix):
            key = "columns" if columns else "prefix" if prefix else "matches"
            raise ConfigError(f"how: {how} adds no columns, so {key} says nothing; leave it out, or write how: inner")
        check(columns is None or len(set(columns)) == len(columns), "columns", columns, "it has each name once")
        check(columns != [] or not self._adds, "columns", columns, "name one at least; how: semi adds none")
        self._columns, self._how, self._matches, self._prefix = columns, how, matches, prefix
        self._settings, self._reader = table, TableReader(table)
        self._name = str(table.path or table.dataset)

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, ROW.name, [ROW.type])
        table = self._reader.columns()
        for left, right in self._on.items():
            _check_key(require_column(schema, left), _column(table, right))
        names = self._columns
        if names is None:
            names = [name for name in table.names if name not in (*self._on.values(), *IDENTITY)]
        self._taken = pa.schema([_column(table, name) for name in names] if self._adds else [])
        fields = [pa.field(self._prefix + f.name, self._type(f.type)) for f in self._taken]
        refuse_identity([f.name for f in fields], "added; give it another name with prefix or table.rename")
        if there := [f.name for f in fields if f.name in schema.names]:
            old = there[0].removeprefix(self._prefix)
            raise SchemaError(
                f"would add the column '{there[0]}', which the rows have already; name others in columns, or rename it:"
                f" prefix: table_, or table.rename={{{old}: table_{old}}}"
            )
        self._schema = pa.schema([*schema, *fields])
        if self._adds and self._matches == "rows":
            self._schema = with_lineage(self._schema)
        return self._schema

    def fingerprint(self) -> dict[str, Any]:
        how_read = {
            key.name: value for key, value in deciding_fields(self._settings) if key.name not in ("path", *OF_PROMPTS)
        }
        return self._reader.fingerprint() | {f"op.table.{name}": value for name, value in how_read.items()}

    def memory_needs(self) -> Iterable[MemoryNeed]:
        table = self._table
        on_disk = f", and {table.disk_bytes:,} on disk" if table.disk_bytes else ""
        what = f"table {self._name}: {table.num_rows:,} rows, {table.size_bytes:,} bytes{on_disk}"
        yield MemoryNeed((Lookup, id(self)), what, table.size_bytes)

    def open(self, runtime: Runtime) -> None:
        _ = self._table
        self._reader.open(runtime)

    def process(self, batch: Batch) -> Iterable[Output]:
        keys = [batch.data.column(name) for name in self._on]
        first, counts = self._table.find(keys, batch.num_rows)
        if self._how != "left":
            stays = counts == 0 if self._how == "anti" else counts > 0
            for item in split(batch, stays, self._reason()):
                yield from self._with_columns(item, first[stays], counts[stays]) if isinstance(item, Batch) else [item]
        else:
            yield from self._with_columns(batch, first, counts)

    def _with_columns(self, batch: Batch, first: Integers, counts: Integers) -> Iterator[Batch]:
        """Yield the rows of `batch` with what they have found."""
        if not self._adds:
            yield batch
        elif self._matches == "list":
            yield from self._lists(batch, first, counts)
        else:
            yield from self._rows(batch, first, counts)

    def _rows(self, batch: Batch, first: Integers, counts: Integers) -> Iterator[Batch]:
        made = np.ones_like(counts) if self._matches == "first" else np.maximum(counts, 1)
        ends = np.cumsum(made)
        for start in range(0, int(ends[-1]) if len(ends) else 0, PIECE_ROWS):
            rows = np.arange(start, min(start + PIECE_ROWS, int(ends[-1])))
            parents = np.searchsorted(ends, rows, "right")
            numbers = rows - (ends - made)[parents]
            new = self._table.values(first[parents] + numbers, counts[parents] == 0)
            data = self._joined(batch.data.take(pa.array(parents)), new, numbers if self._matches == "rows" else None)
            yield batch.with_data(data, expanded=len(rows) - int((numbers == 0).sum()))

    def _lists(self, batch: Batch, first: Integers, counts: Integers) -> Iterator[Batch]:
        ends, start = np.cumsum(counts), 0
        while start < len(ends):
            before = int(ends[start] - counts[start])
            stop = max(start + 1, int(np.searchsorted(ends, before + PIECE_ROWS, "right")))
            of, offsets = counts[start:stop], np.append(0, ends[start:stop] - before)
            elements = np.repeat(first[start:stop] - offsets[:-1], of) + np.arange(offsets[-1])
            empty = pa.array(of == 0)
            new = {
                name: pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=empty)
                for name, values in self._table.values(elements, np.zeros(len(elements), bool)).items()
            }
            yield batch.with_data(self._joined(batch.data.slice(start, stop - start), new))
            start = stop

    def _joined(
        self, data: pa.RecordBatch, new: Mapping[str, pa.Array], numbers: Integers | None = None
    ) -> pa.RecordBatch:
        """Return rows with their new columns. `numbers`: of each row among the matches of one."""
        columns = dict(zip(data.schema.names, data.columns, strict=True))
        columns |= {self._prefix + name: column for name, column in new.items()}
        if numbers is not None:
            columns[LINEAGE.name] = append_to_lineage(columns.get(LINEAGE.name), numbers.astype(np.int32))
        return pa.record_batch([columns[f.name] for f in self._schema], schema=self._schema)

    def _type(self, kind: pa.DataType) -> pa.DataType:
        return pa.list_(kind) if self._matches == "list" else kind

    def _reason(self) -> str:
        """Return why rows leave."""
        if self._how == "cross":
            return "the table has no rows"
        return f"{'a' if self._how == 'anti' else 'no'} row of the table has this {', '.join(self._on)}"

    @cached_property
    def _table(self) -> KeyedTable:
        keys, limit = [*self._on.values()], self._settings.memory_limit_bytes
        with of_table():
            return KeyedTable(self._name, self._reader.batches(), self._taken, keys, limit)


def _column(table: pa.Schema, name: str) -> pa.Field:
    """Return a column of the table. Raises SchemaError if there is none."""
    if name not in table.names:
        hint = did_you_mean(name, table.names) or f"; it has {', '.join(table.names) or 'none'}"
        raise SchemaError(f"the table has no column '{name}'{hint}")
    return table.field(name)


def _check_key(left: pa.Field, right: pa.Field) -> None:
    """Raise SchemaError for two columns that cannot be equal, as their types say."""
    kinds = kind_of_key(left.type), kind_of_key(right.type)
    for field, kind in zip((left, right), kinds, strict=True):
        if kind is None:
            raise SchemaError(f"column '{field.name}' is {field.type}, and a key has single values")
    if kinds[0] != kinds[1]:
        raise SchemaError(
            f"column '{left.name}' is {left.type} and '{right.name}' of the table is {right.type}, so none could match;"
            f" write types: {{{right.name}: {left.type}}} in table (CSV, JSONL), or CAST '{left.name}' in a Map before"
        )
