"""CSV with a header line, comma-separated, or tab-separated for .tsv.

Types come from the first rows, as narrow as their values allow: int64, double (neither with leading zeros nor with more
digits than the type keeps, so that postcodes and identifiers stay text), bool (true, false) or string. An empty field
is null, but in a string column it is an empty string. Blank lines are no rows. Quotes are taken strictly: a quote that
is not closed makes a bad row of the line that opens it, and of no other.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc

from operators.rows.arrow_types import parse_schema
from operators.sources.input_file import BUFFER_BYTES
from operators.sources.text import KEPT_BYTES, UNFIT, Row, TextReader, as_text
from pipeline.api.errors import ConfigError, InputError

UNCLOSED = 'a quote is opened and not closed; close it, and write "" for a quote inside quotes'
QUOTE_THEM = "a field with a delimiter or a line break needs quotes"
BEHIND = 'there is text behind a closing quote; write "" for a quote inside quotes'
SPELLED: tuple[tuple[pa.DataType, str], ...] = (
    (pa.int64(), r"^-?(0|[1-9][0-9]{0,18})$"),
    (pa.float64(), r"^[-+]?((0|[1-9][0-9]{0,14})(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$"),
    (pa.bool_(), r"^(?i:true|false)$"),
)
"""The spelling of the values of a type, narrowest type first."""
CONVERTIBLE = (pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string())


class CsvReader(TextReader):
    """Reads a CSV file; see TextReader. With `data.schema` only the columns that it names are read.

    Bytes that are not UTF-8 are half characters in its fields (Python's `surrogateescape`).
    """

    format = "csv"
    extensions = (".csv", ".tsv")
    _names: Sequence[str] = ()

    def schema(self, sample_rows: int) -> pa.Schema:
        found = [values for row in self.sample(sample_rows) if not isinstance(values := self.values(row), str)]
        if self.types is None:
            return pa.schema([(name, _inferred([values[name] for values in found])) for name in self._names])
        schema = parse_schema(self.types)
        for column in schema if self._names else ():
            if column.name not in self._names:
                raise ConfigError(f"data.schema names '{column.name}'; {self.file} has {', '.join(self._names)}")
            if column.type not in CONVERTIBLE:
                raise ConfigError(f"data.schema.{column.name}={column.type} cannot be read from CSV; use JSONL")
        return schema

    def decoded(self, content: io.BufferedReader) -> IO[str]:
        return io.TextIOWrapper(content, encoding="utf-8-sig", errors="surrogateescape", newline="")

    def rows(self, file: IO[Any]) -> Iterator[Row]:
        """Yield the rows after the header, which is stored in `_names`."""
        rows = _rows(file, "\t" if self.file.suffix == ".tsv" else ",", self.max_row_bytes)
        line, _, self._names = next(rows, (1, "", []))
        if isinstance(self._names, str):
            raise InputError(f"{self.file} cannot be read as CSV: its header, line {line}: {self._names}")
        if "\0" in (names := "".join(self._names)) or not _is_utf8(names):
            looks = self.file.looks_like()
            raise InputError(f"{self.file} cannot be read as CSV: its header is not UTF-8; it begins like {looks}")
        return rows

    def values(self, row: Row) -> Mapping[str, Any] | str:
        _, _, fields = row
        if isinstance(fields, str):
            return fields
        if len(fields) != len(self._names):
            return f"has {len(fields)} fields, the header has {len(self._names)}; {QUOTE_THEM}"
        return dict(zip(self._names, fields, strict=True))

    def record(self, row: Row, values: Mapping[str, Any]) -> str:
        return json.dumps({name: as_text(value) for name, value in values.items()}, ensure_ascii=False)

    def column(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        texts = pa.array(values, pa.string())
        return texts if kind == pa.string() else _cast(texts, kind)


def _inferred(values: Sequence[str]) -> pa.DataType:
    """Return the narrowest type of all `values` that are UTF-8; null if all values are empty."""
    texts = pa.array([value for value in values if value and _is_utf8(value)], pa.string())
    if not len(texts):
        return pa.string() if any(values) else pa.null()
    spelt = (kind for kind, spelling in SPELLED if pc.all(pc.match_substring_regex(texts, spelling)).as_py())
    return next((kind for kind in spelt if _fits(texts, kind)), pa.string())


def _fits(texts: pa.Array, kind: pa.DataType) -> bool:
    try:
        _cast(texts, kind)
    except UNFIT:
        return False
    return True


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts).cast(kind)


def _is_utf8(text: str) -> bool:
    return text.isascii() or text == text.encode(errors="ignore").decode()


def _rows(file: IO[str], delimiter: str, most: int) -> Iterator[Row]:
    """Parse the rows of `file`, without blank lines. If a row cannot be parsed, its first line is a bad row and parsing
    starts again at the second."""
    csv.field_size_limit(sys.maxsize)  # applies to the process; rows are bounded by `most`
    taken: list[str] = []  # lines of the current row
    again: list[str] = []  # lines to parse again, in reverse order
    size, line = 0, 1

    def lines() -> Iterator[str]:
        nonlocal size
        while size <= most and (text := again.pop() if again else file.readline(most + 1)):
            taken.append(text)
            size += len(text)
            yield text

    parser = csv.reader(lines(), delimiter=delimiter, strict=True)
    while True:
        found: list[str] | str | None
        try:
            found = next(parser, None)
        except csv.Error as error:
            found = UNCLOSED if "end of data" in str(error) or len(taken) > 1 else BEHIND
            again += taken[:0:-1]
            del taken[1:]
            size = len(taken[0])
            parser = csv.reader(lines(), delimiter=delimiter, strict=True)
        if found is None:
            return
        if size > most:
            found, rest = f"the row has more than {most:,} characters; Parquet takes longer rows", taken[-1]
            while rest and not rest.endswith(("\n", "\r")):
                rest = file.readline(BUFFER_BYTES)
        if found:
            text = "".join(taken)
            yield line, text[:KEPT_BYTES] if isinstance(found, str) else text.rstrip("\r\n"), found
        line += len(taken)
        taken.clear()
        size = 0
