"""CSV with a header line, comma-separated, or tab-separated for .tsv.

Types come from the first block, as narrow as its values allow: int64, double (neither with leading zeros nor with more
digits than the type keeps, so that postcodes and identifiers stay text), bool (true, false) or string. An empty field
is null, but in a string column it is an empty string. Blank lines are no rows. Quotes are taken strictly: a quote that
is not closed costs the line that opens it, and not what lies behind it.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TextIO, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from operators.rows.arrow_types import parse_schema
from operators.sources.input_file import Content, InputFile
from operators.sources.reader import BadRow, Block, Types, misfits
from pipeline.api.errors import ConfigError, InputError

BLOCK_CHARS = 1 << 20
MAX_ROW_CHARS = 64 << 20
KEPT_CHARS = 4096
"""Of a row that is longer than that: what the reject shows."""
BUFFER_BYTES = 1 << 16
MOST_SHOWN = 100
"""Characters of a value that a reason quotes."""
UNCLOSED = 'a quote is opened and not closed; close it, and write "" for a quote inside quotes'
QUOTE_THEM = "a field with a delimiter or a line break needs quotes"
BEHIND = 'there is text behind a closing quote; write "" for a quote inside quotes'
SPELLED: tuple[tuple[pa.DataType, str], ...] = (
    (pa.int64(), r"^-?(0|[1-9][0-9]{0,18})$"),
    (pa.float64(), r"^[-+]?((0|[1-9][0-9]{0,14})(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$"),
    (pa.bool_(), r"^(?i:true|false)$"),
)
"""What values of a type look like, narrowest type first."""
CONVERTIBLE = (pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string())


Record: TypeAlias = tuple[int, list[str] | str, str]
"""The number of a row's first line, its fields or why there are none, and the text that they were read from."""


@dataclass
class Fields:
    """Consecutive rows before their conversion: `good` fields with the numbers of their `lines`, and the bad rows.

    Bytes that are no UTF-8 are half characters in them (Python's `surrogateescape`).
    """

    good: list[list[str]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows."""
        return len(self.good) + len(self.bad)


class CsvReader:
    """Reads a CSV file; see Reader.

    Args:
        file: the file; may be compressed.
        types: `data.schema`; only the columns that it names are read.
        block_chars: how much is converted at a time.
        max_row_chars: a longer row is a bad row.
    """

    optional_columns = False

    def __init__(
        self,
        file: InputFile,
        types: Types | None = None,
        block_chars: int = BLOCK_CHARS,
        max_row_chars: int = MAX_ROW_CHARS,
    ) -> None:
        self.file = file
        self.bytes_read = 0
        self._types = types
        self._block_chars = block_chars
        self._max_row_chars = max_row_chars
        self._names: list[str] = []

    def schema(self, sample_rows: int) -> pa.Schema:
        """See Reader.schema."""
        with closing(self._blocks()) as blocks:
            first = next(blocks, Fields())
        if self._types is not None:
            return self._given()
        columns = list(zip(*first.good, strict=True)) or [()] * len(self._names)
        return pa.schema([(name, infer_type(column)) for name, column in zip(self._names, columns, strict=True)])

    def total_rows(self) -> None:
        """Not known without reading."""

    def blocks(self, schema: pa.Schema, skip: int) -> Iterator[Block]:
        """See Reader.blocks."""
        done = 0
        for fields in self._blocks():
            done += fields.rows
            yield convert(fields, self._names, schema) if done > skip else Block(fields.rows)

    def _given(self) -> pa.Schema:
        schema = parse_schema(self._types or {})
        for column in schema if self._names else ():
            if column.name not in self._names:
                raise ConfigError(f"data.schema names '{column.name}'; {self.file} has {', '.join(self._names)}")
            if column.type not in CONVERTIBLE:
                raise ConfigError(f"data.schema.{column.name}={column.type} cannot be read from CSV; use JSONL")
        return schema

    def _blocks(self) -> Generator[Fields, None, None]:
        """The rows behind the header, which goes into `_names`."""
        self._names, self.bytes_read = [], 0
        with (
            Content(self.file) as content,
            io.BufferedReader(content, BUFFER_BYTES) as buffered,
            io.TextIOWrapper(buffered, encoding="utf-8-sig", errors="surrogateescape", newline="") as text,
        ):
            delimiter = "\t" if self.file.suffix == ".tsv" else ","
            records = _records(text, delimiter, self._block_chars, self._max_row_chars)
            self._names = self._header(records)
            width, block, chars = len(self._names), Fields(), 0
            for line, row, record in records:
                if isinstance(row, list) and len(row) == width:
                    block.good.append(row)
                    block.lines.append(line)
                else:
                    why = (
                        row if isinstance(row, str) else f"has {len(row)} fields, the header has {width}; {QUOTE_THEM}"
                    )
                    block.bad.append(BadRow(block.rows, why, line, _text(record.rstrip("\r\n"))))
                chars += len(record)
                if chars >= self._block_chars:
                    self.bytes_read = content.position
                    yield block
                    block, chars = Fields(), 0
            self.bytes_read = content.position
            if block.rows:
                yield block

    def _header(self, records: Iterator[Record]) -> list[str]:
        """The column names; none for an empty file."""
        line, names, _ = next(records, (1, [], ""))
        if isinstance(names, str):
            raise InputError(f"{self.file} cannot be read as CSV: its header, line {line}: {names}")
        if not all(map(_is_utf8, names)):
            raise InputError(
                f"{self.file} cannot be read as CSV: its header is not UTF-8; it begins like {self.file.looks_like()}"
            )
        return names


def _records(text: TextIO, delimiter: str, block_chars: int, max_chars: int) -> Iterator[Record]:
    """Parse the rows of `text`, without blank lines; a row with an open quote is parsed again with what follows."""
    csv.field_size_limit(sys.maxsize)  # of the process; a row's size is bounded here
    line, rest, final = 1, "", False
    while not final:
        data = text.read(
            max(1, block_chars // 16, len(rest))
        )  # little ahead of the rows: bytes_read tells the estimate
        final = not data
        rest += data
        end = len(rest) if final else max(rest.rfind("\n"), rest.rfind("\r", 0, -1)) + 1
        if not end and len(rest) > max_chars:
            yield line, _too_long(max_chars), rest[:KEPT_CHARS]
            line, rest = line + 1, _behind_line(text)
            continue
        whole, rest = rest[:end], rest[end:]
        lines = io.StringIO(whole, newline="")
        parser, start, before = csv.reader(lines, delimiter=delimiter, strict=True), 0, line
        while start < end:
            try:
                row = next(parser)
            except csv.Error as error:
                open_at_end = "end of data" in str(error)
                stop = lines.tell()
                if open_at_end and not final and end - start <= max_chars:
                    rest = whole[start:] + rest
                    break
                lines.seek(start)
                first = lines.readline()
                several = start + len(first) < stop
                yield line, UNCLOSED if open_at_end or several else BEHIND, first[:KEPT_CHARS]
                start += len(first)
                line = before = line + 1
                parser = csv.reader(lines, delimiter=delimiter, strict=True)
            else:
                stop = lines.tell()
                if stop - start > max_chars:
                    yield line, _too_long(max_chars), whole[start : start + KEPT_CHARS]
                elif row:
                    yield line, row, whole[start:stop]
                start, line = stop, before + parser.line_num


def _too_long(max_chars: int) -> str:
    return f"the row has more than {max_chars:,} characters; Parquet takes longer rows"


def _behind_line(text: TextIO) -> str:
    """Read on to the end of a line; what was read of the next ones."""
    while data := text.read(BLOCK_CHARS):
        ends = [place for mark in ("\n", "\r") if (place := data.find(mark)) >= 0]
        if ends:
            return data[min(ends) + 1 :]
    return ""


def infer_type(values: Sequence[str]) -> pa.DataType:
    """The narrowest type that all of `values` spell; null when all are empty. Those that are no UTF-8 do not count."""
    texts = pa.array([value for value in values if value and _is_utf8(value)], pa.string())
    if not len(texts):
        return pa.string() if any(values) else pa.null()
    for kind, spelling in SPELLED:
        if pc.all(pc.match_substring_regex(texts, spelling)).as_py() and _cast(texts, kind) is not None:
            return kind
    return pa.string()


def convert(fields: Fields, names: Sequence[str], schema: pa.Schema) -> Block:
    """`fields`, whose columns have `names`, under `schema`; values that do not convert make their rows bad."""
    rows, places = fields.good, [names.index(name) for name in schema.names]
    offsets = Block(fields.rows, None, tuple(fields.bad)).part(0, fields.rows)[1]
    bad: dict[int, BadRow] = {}
    for column, place in zip(schema, places, strict=True):
        values = [row[place] for row in rows]
        for i in _misfits(values, column.type):
            record = json.dumps({name: _text(v) for name, v in zip(names, rows[i], strict=True)}, ensure_ascii=False)
            bad.setdefault(i, BadRow(int(offsets[i]), _why_not(column, values[i]), fields.lines[i], record))
    good = rows if not bad else [row for i, row in enumerate(rows) if i not in bad]
    columns = [_cast([row[place] for row in good], field.type) for field, place in zip(schema, places, strict=True)]
    data = pa.record_batch(columns, schema=schema)
    return Block(fields.rows, data, tuple(sorted([*fields.bad, *bad.values()], key=lambda b: b.offset)))


def _why_not(field: pa.Field, value: str) -> str:
    shown = repr(_text(value[:MOST_SHOWN]))
    if field.type == pa.string():
        return f"column '{field.name}' is not UTF-8: {shown}; convert the file to UTF-8"
    return f"column '{field.name}' is {field.type}, the value is {shown}; data.schema can give another type"


def _cast(values: Sequence[str] | pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Texts as `kind`, or None when one of them does not convert."""
    try:
        texts = pa.array(values, pa.string())
        if kind == pa.string():
            return texts
        return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts).cast(kind)
    except (pa.ArrowException, UnicodeEncodeError):
        return None


def _misfits(values: Sequence[str], kind: pa.DataType) -> list[int]:
    return misfits(len(values), lambda start, stop: _cast(values[start:stop], kind) is not None)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(value: str) -> str:
    """`value` with the bytes that are no UTF-8 in Python's notation."""
    return value.encode(errors="surrogateescape").decode(errors="backslashreplace")
