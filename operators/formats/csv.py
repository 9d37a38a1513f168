"""CSV: fields with commas between them, or with what the header or `data.separator` says, and tabs in .tsv.

A column whose values in the first rows all come back as they are written from int64, or from double, has that type;
any other is text. So `007`, `+49`, `3.10`, `1e5`, `TRUE` and `-0` stay what they are, and a column that has one of them
is text. A later value that does not come back is a bad row. An empty field is null, but in a string column it is an
empty string; with `data.null_texts` only one in quotes, as results have it. Blank lines are no rows. Quotes are taken
strictly: a quote that is not closed makes a bad row of the line that opens it, and of no other. In .tsv they are part
of the text, unless `data.quote` says otherwise.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import IO, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from operators.formats.encodings import not_of
from operators.formats.format import Format, check_text
from operators.formats.input_file import BUFFER_BYTES
from operators.formats.reader import AUTO
from operators.formats.result_csv import MARK, CsvKeys, scan, write
from operators.formats.separator import SAMPLE_ROWS, find_separator, separator_line
from operators.formats.text_file import KEPT_BYTES, Row, TextReader, as_text
from operators.formats.unpack import NO_COMPRESSION
from operators.rows.arrow_types import is_whole, parse_schema
from operators.rows.times import times_of_texts
from pipeline.api.errors import ConfigError, InputError

UNCLOSED = 'a quote is opened and not closed; close it, and write "" for a quote inside quotes'
QUOTE_THEM = "a field with a delimiter or a line break needs quotes"
BEHIND = 'there is text behind a closing quote; write "" for a quote inside quotes'
HEAD_CHARACTERS = 1 << 16
"""Text of a file from which is guessed what is between its fields."""
CONVERTIBLE = (pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string())


class CsvReader(TextReader):
    """Reads a CSV file; see TextReader.

    Bytes that are not of its encoding are half characters in its fields (Python's `surrogateescape`).
    """

    keys = (*TextReader.keys, "separator", "header", "null_texts", "defused")
    takes_types = True
    texts = True
    of_ending: ClassVar[Mapping[str, tuple[str, str | None]]] = {".tsv": ("\t", None)}
    """The separator and the quote of files by the ending of their names, unless keys say otherwise."""
    _names: Sequence[str] = ()
    _separator = ","

    def schema(self, sample_rows: int) -> pa.Schema:
        rows = self.sample(sample_rows)
        found = [values for row in rows if not isinstance(values := self.values(row), str)]
        if rows and not found and isinstance(self.how.header, Sequence):
            why = f"data.header has {len(self.how.header)} names, and no row of {self.file} as many fields"
            raise ConfigError(f"{why}, with {self._separator!r} between them (data.separator); name all columns")
        given = parse_schema(self.types, self.key)
        if self.how.union:
            given = pa.schema([field for field in given if field.name in self._names])
        for column in given if self._names else ():
            if column.name not in self._names:
                raise ConfigError(f"{self.key} names '{column.name}'; {self.file} has {', '.join(self._names)}")
            if column.type not in CONVERTIBLE:
                raise ConfigError(f"{self.key}.{column.name}={column.type} cannot be read from CSV; use JSONL")
        if self.only:
            return given
        types = {field.name: field.type for field in given}
        if self.all_text:
            types = dict.fromkeys(self._names, pa.string())
        return pa.schema([(name, types.get(name) or _inferred([row[name] for row in found])) for name in self._names])

    def rows(self, file: IO[Any]) -> Iterator[Row]:
        """Yield the rows, without the header; the names of the columns are stored in `_names`."""
        separator, quote = self.of_ending.get(self.file.suffix, (None, '"'))
        quote = quote if self.how.quote == AUTO else self.how.quote
        quoting = {"quoting": csv.QUOTE_NONE} if quote is None else {"quotechar": quote}
        # It stays in use: a wrapper that is collected closes the file.
        self._text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        self._quote = quote
        lines, is_all = _first_lines(self._text, self.max_row_bytes)
        of_excel = separator_line(lines[0]) if lines else None
        if of_excel is not None:
            del lines[0]

        def first_rows(separator: str) -> list[list[str] | str]:
            parsed = _rows(io.StringIO("".join(lines), ""), {"delimiter": separator, **quoting}, self.max_row_bytes)
            found = [fields for _, _, fields in islice(parsed, SAMPLE_ROWS + 1)]
            return found if is_all and len(found) <= SAMPLE_ROWS else found[:-1] or found  # the last one may be cut

        self._separator = self.how.separator or of_excel or separator or self._found(first_rows)
        dialect = {"delimiter": self._separator, **quoting}
        rows = _rows(self._text, dialect, self.max_row_bytes, lines, 1 if of_excel is None else 2)
        if self.how.header is not True:
            self._names = self._given(first_rows(self._separator))
            return rows
        line, _, self._names = next(rows, (1, "", []))
        if isinstance(self._names, str):
            raise InputError(f"{self.file} cannot be read as CSV: its header, line {line}: {self._names}")
        self._names = self._plain(self._names)
        if "\0" in (names := "".join(self._names)) or not _is_utf8(names):
            looks = self.file.looks_like()
            why = not_of(self.encoding, f"it begins like {looks}")
            raise InputError(f"{self.file} cannot be read as CSV: its header {why}")
        return rows

    def _found(self, first_rows: Callable[[str], list[list[str] | str]]) -> str:
        columns = len(self.how.header) if isinstance(self.how.header, Sequence) else None
        separator, how = find_separator(first_rows, columns, has_header=self.how.header is True)
        if separator is None:
            raise ConfigError(f"{self.file} may have {how} between its fields; say which with data.separator=")
        if how:
            self.guesses["data.separator"] = how
        return separator

    def _given(self, rows: Sequence[Sequence[str] | str]) -> Sequence[str]:
        """Return the names of the columns of a file without a header, whose first rows these are."""
        if isinstance(self.how.header, Sequence):
            if rows and list(rows[0]) == list(self.how.header):
                raise ConfigError(f"{self.file} has a header line with the names of data.header; leave data.header out")
            return self.how.header
        width = next((len(row) for row in rows if not isinstance(row, str)), 0)
        names = [f"column_{i + 1}" for i in range(width)]
        self.guesses["data.header"] = f"columns are named column_1 to column_{width}"
        return names

    def values(self, row: Row) -> Mapping[str, Any] | str:
        _, text, fields = row
        if isinstance(fields, str):
            return fields
        if len(fields) != len(self._names):
            header = "the header" if self.how.header is True else "data.header"
            return f"has {len(fields)} fields, {header} has {len(self._names)}; {QUOTE_THEM}"
        if self.how.null_texts and "" in fields:
            fields = _with_nulls(text, fields, self._quote)
        return dict(zip(self._names, self._plain(fields), strict=True))

    def _plain(self, fields: Sequence[str]) -> Sequence[str]:
        """Take the marks off, where the file has them."""
        return [field and field.removeprefix(MARK) for field in fields] if self.defused else fields

    def record(self, row: Row, values: Mapping[str, Any]) -> str:
        return json.dumps({name: value and as_text(value) for name, value in values.items()}, ensure_ascii=False)

    def column(self, values: Sequence[Any], field: pa.Field) -> pa.Array:
        kind, texts = field.type, pa.array(values, pa.string())
        if kind == pa.string():
            return texts
        found = _cast(texts, kind)
        if field.name in self.types:
            if pa.types.is_floating(kind):
                lost = pc.or_(pc.is_inf(found), pc.equal(found, 0))
                if pc.any(pc.and_(lost, pc.match_substring_regex(texts, "^[^eE]*[1-9]"))).as_py():
                    raise ValueError  # 1e400, 1e-400
            return found
        if kind == pa.int64():  # as `_come_back` does, and faster
            same = pc.all(pc.equal(found.cast(pa.string()), texts), min_count=0).as_py()
        else:
            same = _come_back(values, kind)
        if not same:
            raise ValueError
        return found


def _inferred(values: Sequence[str]) -> pa.DataType:
    """Return the type from which all `values` come back; null if all are empty, string if there is none."""
    texts = [value for value in values if not value or _is_utf8(value)]
    if not any(texts):
        return pa.string() if any(values) else pa.null()
    return next((kind for kind in (pa.int64(), pa.float64()) if _come_back(texts, kind)), pa.string())


def _with_nulls(text: str, fields: Sequence[str], quote: str | None) -> list[str | None]:
    """Return the `fields` of a row that were read of `text`, with None for each that is empty and has no quotes."""
    found: list[str | None] = []
    at = 0
    for field in fields:
        quoted = quote is not None and text.startswith(quote, at)
        found.append(field if field or quoted else None)
        at += len(field) + 1 + (2 + field.count(str(quote)) if quoted else 0)
    return found


def _come_back(texts: Sequence[str], kind: pa.DataType) -> bool:
    """Return True if all texts that are not empty are numbers of this type as Python writes them."""
    try:
        if kind == pa.int64():
            return all(is_whole(text) for text in texts if text)
        return all(repr(number := float(text)) == text and math.isfinite(number) for text in texts if text)
    except ValueError:
        return False


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts).cast(kind)


def _is_utf8(text: str) -> bool:
    return text.isascii() or text == text.encode(errors="ignore").decode()


def _first_lines(file: IO[str], most: int) -> tuple[list[str], bool]:
    """Read lines from which the rest is guessed, and return whether they are all. None is longer than `most` + 1."""
    lines: list[str] = []
    size = 0
    while size < HEAD_CHARACTERS and (not lines or lines[-1].endswith(("\n", "\r"))):
        if not (line := file.readline(most + 1)):
            return lines, True
        lines.append(line)
        size += len(line)
    return lines, False


def _rows(
    file: IO[str], dialect: Mapping[str, Any], most: int, read: Sequence[str] = (), line: int = 1
) -> Iterator[Row]:
    """Parse the rows of `file`, without blank lines. If a row cannot be parsed, its first line is a bad row and parsing
    starts again at the second.

    Args:
        read: lines that were read before.
        line: the number of the first line.
    """
    csv.field_size_limit(sys.maxsize)  # applies to the process; rows are bounded by `most`
    taken: list[str] = []  # lines of the current row
    again = [*reversed(read)]  # lines to parse again, in reverse order
    size = 0

    def lines() -> Iterator[str]:
        nonlocal size
        while size <= most and (text := again.pop() if again else file.readline(most + 1)):
            taken.append(text)
            size += len(text)
            yield text

    parser = csv.reader(lines(), strict=True, **dialect)
    while True:
        found: list[str] | str | None
        try:
            found = next(parser, None)
        except csv.Error as error:
            found = UNCLOSED if "end of data" in str(error) or len(taken) > 1 else BEHIND
            again += taken[:0:-1]
            del taken[1:]
            size = len(taken[0])
            parser = csv.reader(lines(), strict=True, **dialect)
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


CSV = Format(
    "csv",
    CsvReader,
    (".csv", ".tsv"),
    packed=True,
    hub="csv",
    compressions=(NO_COMPRESSION, "gzip", "zstd"),
    write=write,
    own=CsvKeys,
    rejects=True,
    check=partial(check_text, files="CSV"),
    scan=scan,
    on_card=False,  # pandas has no null in a column of whole numbers
    times=times_of_texts,
)
