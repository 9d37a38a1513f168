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
from datetime import date
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
from operators.rows.arrow_types import parse_schema
from operators.rows.times import times_of_texts
from pipeline.api.errors import ConfigError, InputError, SchemaError, did_you_mean, install
from pipeline.api.records import ROW, SUPERSEDES

READ_ROWS = 8192
MOST_COLUMNS, MOST_UNITS = 16_384, 32_767
"""Of a sheet; and UTF-16 units of a text."""
_WHOLE = float(1 << 53)
"""From here on a double is not every whole number."""
_DAY_0 = date(1899, 12, 31)
"""The day of a time without a day."""
_KINDS = {"Float": "numbers", "Int": "numbers", "String": "texts", "Bool": "booleans", "DateTime": "dates"}
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
        columns = [self._as(table.column(field.name), field) for field in schema]
        for batch in pa.Table.from_arrays(columns, schema=schema).combine_chunks().to_batches(READ_ROWS):
            yield RowBlock(first, batch.num_rows, batch)
            first += batch.num_rows

    def _as(self, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
        try:
            return column.cast(field.type)
        except pa.ArrowException as error:
            raise InputError(
                f"column '{field.name}' of {self.file} is {column.type} and cannot be read as {field.type}: {error}"
            ) from error

    def _table(self, as_text: Collection[str], told: list[str]) -> pa.Table:
        """Return the rows of the sheet. `as_text`: columns to read as texts; `told`: gets what the user must know."""
        try:
            import fastexcel
        except ImportError as error:
            raise ConfigError(f"{self.file}: to read Excel files needs fastexcel: {install('excel')}") from error
        logging.getLogger("fastexcel").setLevel(logging.ERROR)  # it warns of each empty column
        try:
            with self.file.open() as file:
                book = fastexcel.read_excel(str(self.file.local) if self.file.local else file.read())
            title = self._title(book.sheet_names, told)
            head = book.load_sheet(title, header_row=None, n_rows=1, dtypes="string").to_arrow()
            names = [column[0].as_py() for column in pa.record_batch(head).columns] if head.num_rows else []
            sheet, mixed = _load(book, title, names, as_text, all_text=self.all_text)
            read, errors = sheet.to_arrow_with_errors()
        except fastexcel.FastExcelError as error:
            why, like = str(error).partition("\n")[0], self.file.looks_like()
            raise InputError(f"{self.file} cannot be read as an Excel file: {why}; it begins like {like}") from error
        columns = [_typed(column) for column in pa.record_batch(read).columns]
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
                f" {row + 1}, column '{names[column] or column + 1}'"
            )
        if self.defused:
            columns = [unmarked(each) if each.type == pa.string() else each for each in columns]
            named = unmarked(pa.array(named, pa.string())).to_pylist()
        table = pa.Table.from_arrays([columns[i] for i in kept], named)
        cells = [pc.is_valid(column).to_numpy(zero_copy_only=False) for column in table.columns]
        return table.filter(pa.array(np.logical_or.reduce(cells))) if cells else table

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


def _load(
    book: Any, title: str, names: Sequence[str | None], as_text: Collection[str], *, all_text: bool
) -> tuple[Any, list[tuple[str, str]]]:
    """Load a sheet. Returns it with the columns that are text since their cells are of several kinds, and these."""
    import fastexcel

    if all_text:
        return book.load_sheet(title, dtypes="string"), []
    texts = {i: "string" for i, name in enumerate(names) if name in as_text}
    mixed: list[tuple[str, str]] = []
    while True:
        try:
            sheet = book.load_sheet(title, schema_sample_rows=None, dtype_coercion="strict", dtypes=texts)
            if not (lost := _lost_texts(sheet, book, title)):
                return sheet, mixed
            texts |= dict.fromkeys(lost, "string")
            mixed += [(names[i] or f"column_{i + 1}", "other cells and texts like N/A") for i in lost]
        except fastexcel.UnsupportedColumnTypeCombinationError as error:
            said, columns = str(error), book.load_sheet(title, n_rows=0, dtypes="string").available_columns()
            i = next((each.index for each in columns if f"for column {each.name}\n" in said), None)
            if i is None or i in texts:
                raise
            texts[i] = "string"
            kinds = sorted(_KINDS.get(kind, kind) for kind in said.partition("{")[2].partition("}")[0].split(", "))
            mixed.append((names[i] or f"column_{i + 1}", " and ".join(kinds)))


def _lost_texts(sheet: Any, book: Any, title: str) -> list[int]:
    """Return the columns of a sheet in which fastexcel has taken a text (N/A, null, NaN ...) for no value, or for a
    number."""
    read = pa.record_batch(sheet.to_arrow_with_errors()[0])
    if all(kind == pa.string() for kind in read.schema.types):
        return []
    cells = pa.record_batch(book.load_sheet(title, dtypes="string").to_arrow_with_errors()[0])
    lost = []
    for i, (column, texts) in enumerate(zip(read.columns, cells.columns, strict=True)):
        is_none = pc.is_null(column, nan_is_null=True)
        if column.type != pa.string() and pc.any(pc.and_(is_none, pc.is_valid(texts))).as_py():
            lost.append(i)
    return lost


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
        if pc.max(days).as_py() <= _DAY_0:
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
