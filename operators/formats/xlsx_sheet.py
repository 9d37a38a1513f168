"""Load a sheet of an Excel file by fastexcel, and mend what it changes.

A column of several kinds is read as text. fastexcel writes a number with nine decimals there, a time of a day as a time
of 1899, and 26 hours as one of 1900. It takes texts like N/A for no value, and says nothing of formulas without one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from datetime import date, timedelta
from io import BytesIO
from typing import Any
from xml.etree import ElementTree
from zipfile import BadZipFile, ZipFile

import pyarrow as pa
import pyarrow.compute as pc

DAY_0 = date(1899, 12, 31)
"""The day of a time without a day."""
_DAY = timedelta(days=1)
_KINDS = {"Float": "numbers", "Int": "numbers", "String": "texts", "Bool": "booleans"}
_KINDS |= {"DateTime": "dates", "Duration": "durations"}
_DURATION = "datetime_type: TimeDelta"
_UNSAVED = re.compile(rb'<c r="([A-Z]+\d+)"[^>]*><f(?:[^>]*/>|[^>]*>[^<]*</f>)\s*(?:<v\s*/>|<v></v>)?\s*</c>')
_READ_BYTES, _LONGEST_CELL = 1 << 20, 1 << 14
_XML = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"

Load = Callable[..., Any]
"""Loads a sheet: `load_sheet` of fastexcel with all but the types."""


def headings(load: Load) -> list[str | None]:
    """Return the texts of the first row that has a cell. `load`: loads it."""
    head = pa.record_batch(load(dtypes="string").to_arrow())
    if not head.num_rows:
        return []
    return [column[0].as_py() for column in exact_texts(load, range(head.num_columns), head)]


def load_sheet(
    load: Load, names: Sequence[str | None], as_text: Collection[str], *, all_text: bool
) -> tuple[Any, list[int], list[tuple[str, str]]]:
    """Load a sheet. Returns it with the columns that are read as texts, and those of them that have several kinds of
    cells, with these."""
    import fastexcel

    if all_text:
        return load(dtypes="string"), list(range(len(names))), []
    texts = {i: "string" for i, name in enumerate(names) if name in as_text}
    mixed: list[tuple[str, str]] = []
    while True:
        try:
            sheet = load(schema_sample_rows=None, dtype_coercion="strict", dtypes=texts)
            if not (several := _several_kinds(sheet, load)):
                return sheet, sorted(texts), mixed
        except fastexcel.UnsupportedColumnTypeCombinationError as error:
            said, columns = str(error), load(n_rows=0, dtypes="string").available_columns()
            i = next((each.index for each in columns if f"for column {each.name}\n" in said), None)
            if i is None or i in texts:
                raise
            kinds = sorted(_KINDS.get(kind, kind) for kind in said.partition("{")[2].partition("}")[0].split(", "))
            several = {i: " and ".join(kinds)}
        texts |= dict.fromkeys(several, "string")
        mixed += [(names[i] or f"column_{i + 1}", kinds) for i, kinds in several.items()]


def _several_kinds(sheet: Any, load: Load) -> dict[int, str]:
    """Return the columns of a sheet with cells of several kinds, and these, of which fastexcel says nothing: it has
    taken a text (N/A, null, NaN ...) for no value, or for a number, or a time of a day for a date."""
    read = pa.record_batch(sheet.to_arrow_with_errors()[0])
    if all(kind == pa.string() for kind in read.schema.types):
        return {}
    cells = pa.record_batch(load(dtypes="string").to_arrow_with_errors()[0])
    several = {}
    for i, (column, texts) in enumerate(zip(read.columns, cells.columns, strict=True)):
        is_none = pc.is_null(column, nan_is_null=True)
        if column.type != pa.string() and pc.any(pc.and_(is_none, pc.is_valid(texts))).as_py():
            several[i] = "other cells and texts like N/A"
        elif pa.types.is_timestamp(column.type):
            days = pc.min_max(column.cast(pa.date32(), safe=False))
            if days["min"].is_valid and days["min"].as_py() <= DAY_0 < days["max"].as_py():
                several[i] = "dates and times of a day"
    return several


def exact_texts(load: Load, columns: Sequence[int], texts: pa.RecordBatch) -> list[pa.Array]:
    """Return the columns of `texts` with those in `columns` as what their cells have: all digits of a number, times of
    a day and durations as hours, minutes and seconds.

    Args:
        texts: the sheet, in which fastexcel has made texts of the cells of `columns`.
    """
    found = list(texts.columns)
    if not columns:
        return found
    numbers, times = (
        pa.record_batch(load(dtypes=dict.fromkeys(columns, kind), use_columns=list(columns)).to_arrow()).columns
        for kind in ("float", "duration")
    )
    for i, of_numbers, of_times in zip(columns, numbers, times, strict=True):
        cells = found[i].to_pylist()
        for row, number in enumerate(of_numbers.to_pylist()):
            if number is not None and math.isfinite(number) and _is_cut(cells[row], number):
                cells[row] = repr(number)
        if of_times.null_count < len(of_times):
            durations = _durations(load, i)
            for row, time in enumerate(of_times.to_pylist()):
                if time is not None and (time < _DAY or row in durations):
                    cells[row] = _clock(time)
        found[i] = pa.array(cells, pa.string())
    return found


def _is_cut(text: str | None, number: float) -> bool:
    """Return whether `text` stands for `number` and has lost digits of it. TRUE is a number, too."""
    try:
        return text is not None and float(text) != number
    except ValueError:
        return False


def _durations(load: Load, column: int) -> set[int]:
    """Return the rows in which a cell has a duration, which is more than its number says."""
    errors = load(dtypes={column: "float"}, use_columns=[column]).to_arrow_with_errors()[1]
    return {each.offset_position[0] for each in errors.errors if _DURATION in each.detail} if errors else set()


def _clock(time: timedelta) -> str:
    seconds, milliseconds = divmod(time // timedelta(milliseconds=1), 1000)
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}" + (f".{milliseconds:03}" if milliseconds else "")


def unsaved_formulas(book: str | bytes, title: str) -> tuple[int, str]:
    """Return how many cells of a sheet have a formula and no value, and the name of the first. `book`: path or content
    of the file; of formats that are no XML there are none."""
    count, first = 0, ""
    try:
        with (
            ZipFile(book if isinstance(book, str) else BytesIO(book)) as packed,
            packed.open(_part(packed, title)) as xml,
        ):
            rest = b""
            while data := xml.read(_READ_BYTES):
                data, end = rest + data, 0
                for match in _UNSAVED.finditer(data):
                    count, end = count + 1, match.end()
                    first = first or match[1].decode()
                rest = data[max(end, len(data) - _LONGEST_CELL) :]
    except (BadZipFile, KeyError, ElementTree.ParseError, StopIteration):
        return 0, ""
    return count, first


def _part(packed: ZipFile, title: str) -> str:
    """Return the name of the file in the workbook that has the sheet."""
    sheets = ElementTree.fromstring(packed.read("xl/workbook.xml")).iter(f"{_XML}sheet")
    relation = next(each.get(_RELATION) for each in sheets if each.get("name") == title)
    parts = ElementTree.fromstring(packed.read("xl/_rels/workbook.xml.rels"))
    target = next(str(each.get("Target")) for each in parts if each.get("Id") == relation)
    return target.removeprefix("/") if target.startswith("/") else f"xl/{target}"
