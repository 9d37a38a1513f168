"""Excel files: read by fastexcel, a sheet at a time; results are Parquet until the end, when results.xlsx is made.

The first row with a cell has the headings. A column of numbers is int64 if all are whole, else double; of dates it is
date32, timestamp or time, of booleans bool, and of texts string. One of several kinds, or errors, is told. Formulas
give the values that were kept with them. Empty cells are null, and rows without any cell are no rows.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from operators.formats import parquet
from operators.formats.csv import CSV
from operators.formats.format import FinalFile, Format
from operators.formats.reader import Reader, RowBlock
from operators.formats.result_csv import DefuseKey, unmarked
from operators.formats.xlsx_sheet import DAY_0, exact_texts, headings, load_sheet, unsaved_formulas
from operators.rows.arrow_types import parse_schema
from operators.rows.times import times_of_texts
from pipeline.api.errors import ConfigError, InputError, SchemaError, did_you_mean, install
from pipeline.api.records import ROW, SUPERSEDES, Reject, python_rows, record_json, value_as_text

READ_ROWS = 8192
MOST_COLUMNS, MOST_UNITS = 16_384, 32_767
"""Of a sheet; and UTF-16 units of a text."""
_WHOLE = float(1 << 53)
"""From here on a double is not every whole number."""
_NOT_IN_XML = re.compile("[\\0-\\x08\\x0b\\x0c\\x0e-\\x1f\\ufffe\\uffff]")
_TYPES = (pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string())


class XlsxReader(Reader):
    """Reads a sheet (`data.sheet`), which is in memory as a whole while its rows are sent."""

    takes_types = True
    texts = True
    keys = (*Reader.keys, "sheet", "defused")
    _rows: int | None = None

    def schema(self, sample_rows: int) -> pa.Schema:
        given = parse_schema(self.types, self.key)
        self.told.clear()
        table = self._table({field.name for field in given if field.type == pa.string()}, self.told)
        self._rows = table.num_rows
        for field in given:
            if field.name not in table.schema.names:
                names = ", ".join(table.schema.names)
                raise ConfigError(f"{self.key} names '{field.name}'; {self.file} has {names}")
            if field.type not in _TYPES:
                raise ConfigError(f"{self.key}.{field.name}={field.type} cannot be read from Excel; use JSONL")
        types = {field.name: field.type for field in given}
        return given if self.only else pa.schema([(f.name, types.get(f.name, f.type)) for f in table.schema])

    def total_rows(self) -> int | None:
        return self._rows

    def has_rows(self) -> bool:
        return bool(self._table((), []).num_rows if self._rows is None else self._rows)

    def blocks(self, schema: pa.Schema, first: int, start: int) -> Iterator[RowBlock]:
        table = self._table({field.name for field in schema if field.type == pa.string()}, [])
        bad: dict[int, str] = {}
        columns = [self._as(table.column(field.name), field, bad) for field in schema]
        rows = pa.Table.from_arrays(columns, schema=schema)
        for at in range(0, len(rows), READ_ROWS):
            places = range(at, min(at + READ_ROWS, len(rows)))
            good = rows.slice(at, READ_ROWS).combine_chunks().to_batches()[0]
            at_bad = [i for i in places if i in bad]
            rejects = [Reject(first + i - at, bad[i], _record(table, i), file=str(self.file)) for i in at_bad]
            if rejects:
                good = good.filter(pa.array([i not in bad for i in places]))
            yield RowBlock(first, len(places), good, tuple(rejects))
            first += len(places)

    def _as(self, column: pa.ChunkedArray, field: pa.Field, bad: dict[int, str]) -> pa.ChunkedArray:
        """Return a column in the type of `field`. A value that has none there is null, and `bad` gets why, by row."""
        with suppress(pa.ArrowException):
            return column.cast(field.type)
        cells = []
        for row, cell in enumerate(column.to_pylist()):
            try:
                cells.append(pa.array([cell], column.type).cast(field.type)[0].as_py())
            except pa.ArrowException:
                cells.append(None)
                bad.setdefault(row, f"column '{field.name}' has {value_as_text(cell)!r}, which is no {field.type}")
        return pa.chunked_array([pa.array(cells, field.type)])

    def _table(self, as_text: Collection[str], told: list[str]) -> pa.Table:
        """Return the rows of the sheet. `as_text`: columns to read as texts; `told`: gets what the user must know."""
        try:
            import fastexcel
        except ImportError as error:
            raise ConfigError(f"{self.file}: to read Excel files needs fastexcel: {install('excel')}") from error
        logging.getLogger("fastexcel").setLevel(logging.ERROR)  # it warns of each empty column
        try:
            with self.file.open() as file:
                content = str(self.file.local) if self.file.local else file.read()
            book = fastexcel.read_excel(content)
            title = self._title(book.sheet_names, told)
            names = headings(partial(book.load_sheet, title, header_row=None, n_rows=1))
            load = partial(book.load_sheet, title)
            sheet, of_texts, mixed = load_sheet(load, names, as_text, all_text=self.all_text)
            read, errors = sheet.to_arrow_with_errors()
            columns = [_typed(column) for column in exact_texts(load, of_texts, pa.record_batch(read))]
        except fastexcel.FastExcelError as error:
            why, like = str(error).partition("\n")[0], self.file.looks_like()
            raise InputError(f"{self.file} cannot be read as an Excel file: {why}; it begins like {like}") from error
        kept = [i for i, column in enumerate(columns) if names[i] is not None or column.null_count < len(column)]
        named = [names[i] or f"column_{i + 1}" for i in kept]
        for i in kept:
            if names[i] is None:
                told.append(f"{self.file} has no heading over column {i + 1}; it is called column_{i + 1}")
        for name, kinds in mixed:
            told.append(f"column '{name}' of {self.file} has {kinds}; it is read as text")
        broken = [error for error in errors.errors if "Error(" in error.detail] if errors else []
        if broken:
            row, column = broken[0].position
            what = broken[0].detail.partition("Error(")[2].partition(")")[0]
            told.append(
                f"{self.file} has cells with errors, {len(broken)} in all, which are null: the first is #{what} in row"
                f" {row + 1} (the headings are row 1), column '{names[column] or column + 1}'"
            )
        count, first = unsaved_formulas(content, title)
        if count:
            told.append(
                f"{self.file} has formulas without a value, {count} in all, which are null: the first is {first}; open"
                " the file in a spreadsheet and save it"
            )
        if self.defused:
            columns = [unmarked(each) if each.type == pa.string() else each for each in columns]
            named = unmarked(pa.array(named, pa.string())).to_pylist()
        table = pa.Table.from_arrays([columns[i] for i in kept], named)
        cells = [pc.is_valid(column).to_numpy(zero_copy_only=False) for column in table.columns]
        has_cell = np.logical_or.reduce(cells) if cells else np.zeros(0, np.bool_)
        has_cell[[error.offset_position[0] for error in broken]] = True
        return table.filter(pa.array(has_cell)) if cells else table

    def _title(self, titles: Sequence[str], told: list[str]) -> str:
        """Return the name of the sheet to read."""
        sheet = self.how.sheet
        if sheet is None:
            if len(titles) > 1:
                others = ", ".join(f"'{title}'" for title in titles[1:])
                told.append(
                    f"of {self.file} the first sheet, '{titles[0]}', is read; data.sheet= takes others: {others}"
                )
            return titles[0]
        if isinstance(sheet, int) and 1 <= sheet <= len(titles):
            return titles[sheet - 1]
        if sheet in titles:
            return str(sheet)
        hint = did_you_mean(str(sheet), titles, "data.sheet=")
        raise ConfigError(f"data.sheet={sheet}: {self.file} has the sheets {', '.join(titles)}{hint}")


def _record(table: pa.Table, row: int) -> str:
    return record_json(python_rows(table.slice(row, 1).combine_chunks().to_batches()[0])[0])


def _typed(column: pa.Array) -> pa.Array:
    """Return a column of cells with the type that says most of them: whole numbers, days, times of a day."""
    kind = column.type
    if column.null_count == len(column):
        return pa.nulls(len(column))
    if pa.types.is_floating(kind):
        whole = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), _WHOLE))
        signed = pc.equal(pc.divide(1.0, column), -math.inf)  # -0
        return column.cast(pa.int64()) if pc.all(pc.and_not(whole, signed)).as_py() else column
    if pa.types.is_timestamp(kind):
        days = column.cast(pa.date32(), safe=False)
        if pc.max(days).as_py() <= DAY_0:
            return column.cast(pa.time32("ms"), safe=False)
        return days if days.cast(kind).equals(column) else column
    return column


def write(table: pa.Table, file: BinaryIO, compression: str, level: int | None, defuse: bool) -> None:
    """Write a file of data/; see Format. Marks are put into the final file alone."""
    parquet.PARQUET.write(table, file, compression, level)


def check(field: pa.Field) -> None:
    """Raise SchemaError for a column that Parquet or a sheet cannot hold."""
    parquet.check(field)
    CSV.check(field)
    if why := why_not(field.name):
        raise SchemaError(f"the name of column {field.name!r} {why}; write output=csv, or give it another name")


def why_not(text: str) -> str:
    """Return why no cell can hold a text, if so."""
    if len(text) > MOST_UNITS // 2 and (units := len(text.encode("utf-16-le")) // 2) > MOST_UNITS:
        return f"is {units:,} long (in UTF-16), and a cell holds {MOST_UNITS:,}"
    if found := _NOT_IN_XML.search(text):
        return f"has the character U+{ord(found[0]):04X} (number {found.start() + 1:,}), which no Excel file can hold"
    return ""


def conclude(path: Path, data: Sequence[Path], rejects: Sequence[Path], newest: bool, defuse: bool) -> None:
    """Write the final file from those of data/ and rejects/; see FinalFile."""
    from operators.formats.xlsx_writer import write_book

    sheets = {"results": _sheet(data, newest), "rejects": _sheet(rejects, False)}
    write_book(path, {name: sheet for name, sheet in sheets.items() if sheet is not None}, defuse=defuse)


def _sheet(files: Sequence[Path], newest: bool) -> tuple[pa.Schema, int, Iterator[pa.RecordBatch]] | None:
    """Return the columns of `files`, their number of rows and the rows; None without files."""
    if not files:
        return None
    rows = sum(pq.read_metadata(file).num_rows for file in files)
    batches = (batch for file in files for batch in pq.ParquetFile(file).iter_batches(READ_ROWS))
    if newest:
        ids = [pq.read_table(file, columns=[ROW.name, SUPERSEDES.name]) for file in files]
        older = pa.chunked_array([chunk for table in ids for chunk in table.column(SUPERSEDES.name).chunks], pa.int64())
        rows -= sum(pc.sum(_is_in(table.column(ROW.name), older)).as_py() or 0 for table in ids)
        batches = (batch.filter(pc.invert(_is_in(batch.column(ROW.name), older))) for batch in batches)
    return pq.read_schema(files[0]), rows, batches


def _is_in(rows: pa.Array | pa.ChunkedArray, older: pa.ChunkedArray) -> Any:
    return pc.is_in(rows, older, skip_nulls=True)


def require() -> None:
    """Raise ConfigError if what writes Excel files is not installed."""
    if find_spec("xlsxwriter") is None:
        raise ConfigError(f"output=xlsx needs xlsxwriter: {install('excel')}")


XLSX = Format(
    "xlsx",
    XlsxReader,
    (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"),
    alone=True,
    compressions=parquet.PARQUET.compressions,
    write=write,
    own=DefuseKey,
    check=check,
    times=times_of_texts,
    final=FinalFile("parquet", conclude, require, MOST_COLUMNS),
)
