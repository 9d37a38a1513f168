"""results.xlsx: the rows of a run in a sheet of Excel, and its rejects in another.

Texts are text cells, so nothing in them is run. Whole numbers beyond 2^53, which a cell would round, NaN, infinities,
times with a zone, finer than milliseconds or before 1900-03-01 (from which all programs count days alike) and decimals
are texts, too; lists and objects are JSON. A null has no cell. Equal rows give equal bytes.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import xlsxwriter
from xlsxwriter.exceptions import FileCreateError
from xlsxwriter.worksheet import Worksheet

from operators.formats.result_csv import is_text, marked, texts_of
from operators.formats.xlsx import why_not
from pipeline.api.errors import PipelineError
from pipeline.api.records import ROW
from pipeline.system.atomic_files import TEMPORARY_SUFFIX, replacing
from pipeline.system.disk_errors import writing

MOST_ROWS = 1_048_576
"""Of a sheet, the header's row included."""
_SHOWN = {date: "yyyy-mm-dd", datetime: "yyyy-mm-dd hh:mm:ss"}
_EXACT = 1 << 53
_FIRST_DAY = datetime(1900, 3, 1)
_MADE = datetime(2000, 1, 1)
"""The time of creation of every file."""
INSTEAD = (
    "All results are in data/ as Parquet. Begin anew with overwrite=true and output=csv, jsonl or parquet, which takes"
    " completions from the store, or with that column changed or left out"
)
UNFIT = "(no cell can hold this text; it stands in rejects/)"
Sheet = tuple[pa.Schema, int, Iterable[pa.RecordBatch]]
"""The columns, the number and the batches of the rows of a sheet."""


class _ExactSheet(Worksheet):
    """A sheet whose numbers have all their digits, and in which no text is taken for markup."""

    def _xml_number_element(self, number: float, attributes: Sequence[tuple[str, Any]] = ()) -> None:
        attr = "".join(f' {key}="{value}"' for key, value in attributes)
        self.fh.write(f"<c{attr}><v>{number!r}</v></c>")

    def _xml_rich_inline_string(self, string: str, attributes: Sequence[tuple[str, Any]] = ()) -> None:
        self._xml_inline_string(string, False, attributes)


def write_book(path: Path, sheets: dict[str, Sheet], *, defuse: bool) -> None:
    """Write `sheets` by name into the file `path`, atomically. Of all but the first, texts that no cell can hold are
    replaced by UNFIT.

    Raises:
        PipelineError: the first has too many rows, or a text that no cell can hold; names the row and the column.
        StorageError: the disk is full, or fails.
    """
    rows = next(iter(sheets.values()))[1]
    if rows >= MOST_ROWS:
        raise PipelineError(
            f"{path.name} cannot be written: {rows:,} rows, and a sheet holds {MOST_ROWS - 1:,} below its header."
            f" {INSTEAD.partition(', or')[0]}"
        )
    folder = path.with_name(f".{path.name}{TEMPORARY_SUFFIX}")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with writing(path):
            folder.mkdir()
        with replacing(path) as file:
            try:
                _write(file, sheets, folder, defuse, path.name)
            except FileCreateError as error:
                raise error.args[0] from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(file: Any, sheets: dict[str, Sheet], folder: Path, defuse: bool, name: str) -> None:
    book = xlsxwriter.Workbook(file, {"constant_memory": True, "tmpdir": str(folder), "use_zip64": True})
    book.set_properties({"created": _MADE})
    try:
        _fill(book, sheets, defuse, name)
        book.close()
    finally:
        for sheet in book.worksheets():
            sheet.row_data_fh.close()


def _fill(book: xlsxwriter.Workbook, sheets: dict[str, Sheet], defuse: bool, name: str) -> None:
    formats = {kind: book.add_format({"num_format": text}) for kind, text in _SHOWN.items()}
    for number, (title, (schema, _, batches)) in enumerate(sheets.items()):
        sheet = book.add_worksheet(title, _ExactSheet)
        sheet.freeze_panes(1, 0)
        header = pa.array(schema.names, pa.string())
        _write_row(sheet, 0, (marked(header) if defuse else header).to_pylist(), formats)
        at = 1
        for batch in batches:
            unfit = partial(_refuse, name, batch) if number == 0 else _replaced
            columns = [
                [
                    unfit(column, i, why) if type(value) is str and (why := why_not(value)) else value
                    for i, value in enumerate(cells_of(batch.column(column), defuse))
                ]
                for column in batch.schema.names
            ]
            for values in zip(*columns, strict=True):
                _write_row(sheet, at, values, formats)
                at += 1


def _write_row(sheet: Worksheet, row: int, values: Iterable[Any], formats: Mapping[Any, Any]) -> None:
    for column, value in enumerate(values):
        kind = type(value)
        if kind is str:
            sheet.write_string(row, column, value)
        elif kind is bool:
            sheet.write_boolean(row, column, value)
        elif kind in formats:
            sheet.write_datetime(row, column, value, formats[kind])
        elif value is not None:
            sheet.write_number(row, column, value)


def _refuse(name: str, batch: pa.RecordBatch, column: str, i: int, why: str) -> str:
    row = batch.column(ROW.name)[i]
    raise PipelineError(f"{name} cannot be written: in row {row} the text of column '{column}' {why}. {INSTEAD}")


def _replaced(column: str, i: int, why: str) -> str:
    return UNFIT


def cells_of(column: pa.Array, defuse: bool) -> list[Any]:
    """Return the values of a column as cells have them: texts, numbers, booleans, days, times; None: no cell."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_integer(kind):
        return [n if n is None or -_EXACT <= n <= _EXACT else str(n) for n in column.to_pylist()]
    texts = texts_of(column)
    if pa.types.is_floating(kind):
        return [None if text is None else _number(text) for text in texts.to_pylist()]
    if pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
        return [text and _moment(text, pa.types.is_date(kind)) for text in texts.to_pylist()]
    return (marked(texts) if defuse and is_text(kind) else texts).to_pylist()  # type: ignore[no-any-return]


def _moment(text: str, day: bool) -> date | datetime | str:
    """Return a day or time as it is in a cell, or its text where no cell can hold it."""
    moment = datetime.fromisoformat(text[:26])
    if moment < _FIRST_DAY or moment.microsecond % 1000 or text[26:].strip("0"):
        return text
    return moment.date() if day else moment


def _number(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) and (not number or abs(number) >= sys.float_info.min) else text
