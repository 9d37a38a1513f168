"""CSV with a header line, comma-separated, or tab-separated for .tsv.

Fields are read as bytes and converted column by column, so that a value that does not convert costs its row and not
the block. Types come from the first block, as narrow as its values allow: int64, double (neither with leading zeros
nor with more digits than the type keeps, so that postcodes and identifiers stay text), bool (true, false) or string.
An empty field is null, but in a string column it is an empty string. Blank lines are no rows. The `line` of a bad row
counts records from 1, the header being the first: that is its line in a file without blank lines and without line
breaks inside quotes.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from operators.sources.input_file import Content, InputFile
from operators.sources.marked import MARK, MarkedFile, shown
from operators.sources.reader import BadRow, Block, Types, misfits
from operators.sources.schemas import parse_schema
from pipeline.errors import ConfigError, InputError

BLOCK_BYTES = 1 << 20
HEADER_RECORDS = 1
MOST_SHOWN = 100
"""Bytes of a value that a reason quotes."""
SPELLED: tuple[tuple[pa.DataType, str], ...] = (
    (pa.int64(), r"^-?(0|[1-9][0-9]{0,18})$"),
    (pa.float64(), r"^[-+]?((0|[1-9][0-9]{0,14})(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$"),
    (pa.bool_(), r"^(?i:true|false)$"),
)
"""What values of a type look like, narrowest type first."""
CONVERTIBLE = (pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string())


class CsvReader:
    """Reads a CSV file; see Reader.

    Args:
        file: the file; may be compressed.
        types: `data.schema`; only the columns that it names are read.
        block_bytes: how much is parsed at a time; also the longest row.
    """

    optional_columns = False

    def __init__(self, file: InputFile, types: Types | None = None, block_bytes: int = BLOCK_BYTES) -> None:
        self.file = file
        self.bytes_read = 0
        self._types = types
        self._block_bytes = block_bytes

    def schema(self, sample_rows: int) -> pa.Schema:
        """See Reader.schema."""
        names = self._header()
        if self._types is not None:
            return self._given(names)
        if not names:
            return pa.schema([])
        with self._open(names, []) as (reader, source):
            first = next(_batches(reader, self.file, source), None)
        types = [pa.null()] * len(names) if first is None else [infer_type(column) for column in first.columns]
        return pa.schema(list(zip(names, types, strict=True)))

    def total_rows(self) -> None:
        """Not known without reading."""

    def blocks(self, schema: pa.Schema, skip: int) -> Iterator[Block]:
        """See Reader.blocks."""
        names = self._header()
        if not names:
            return
        invalid: list[BadRow] = []
        done = self.bytes_read = 0
        with self._open(names, invalid) as (reader, source):
            for fields in _batches(reader, self.file, source):
                self.bytes_read = source.position if self.file.codec else self.bytes_read + _text_bytes(fields)
                bad = _take_invalid(invalid, done, fields.num_rows)
                block = Block(fields.num_rows + len(bad), fields, bad)
                yield convert(block, schema, done) if done + block.rows > skip else Block(block.rows)
                done += block.rows
        if invalid:
            yield Block(len(invalid), None, tuple(replace(b, offset=b.offset - done) for b in invalid))

    def _header(self) -> list[str]:
        """The column names; none for an empty file."""
        try:
            with (
                io.BufferedReader(Content(self.file)) as content,
                io.TextIOWrapper(content, encoding="utf-8-sig", errors="surrogateescape", newline="") as text,
            ):
                names = next((row for row in csv.reader(text, delimiter=self._delimiter) if row), [])
            "".join(names).encode("utf-8")
        except (UnicodeEncodeError, csv.Error) as error:
            raise _unreadable(self.file, error) from error
        return names

    def _given(self, names: list[str]) -> pa.Schema:
        schema = parse_schema(self._types or {})
        for field in schema if names else ():
            if field.name not in names:
                raise ConfigError(f"data.schema names '{field.name}'; {self.file} has {', '.join(names)}")
            if field.type not in CONVERTIBLE:
                raise ConfigError(f"data.schema.{field.name}={field.type} cannot be read from CSV; use JSONL")
        return schema

    @contextmanager
    def _open(self, names: list[str], invalid: list[BadRow]) -> Iterator[tuple[Any, MarkedFile]]:
        """A CSVStreamingReader of the fields as binary columns, and what it reads from.

        Rows with a wrong number of fields go to `invalid`.
        """

        def take_out(row: pa.csv.InvalidRow) -> str:
            found = f"has {row.actual_columns} fields, the header has {row.expected_columns}"
            why = f"{found}; a field with a delimiter or a line break needs quotes"
            invalid.append(BadRow(row.number - 1 - HEADER_RECORDS, why, row.number, shown(row.text)))
            return "skip"

        with MarkedFile(Content(self.file)) as source:
            try:
                reader = pa.csv.open_csv(
                    source,
                    pa.csv.ReadOptions(use_threads=False, block_size=self._block_bytes),
                    pa.csv.ParseOptions(
                        delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=take_out
                    ),
                    pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary()), check_utf8=False),
                )
            except pa.ArrowException as error:
                raise source.failure or _unreadable(self.file, error) from error
            with reader:
                yield reader, source

    @property
    def _delimiter(self) -> str:
        return "\t" if self.file.suffix == ".tsv" else ","


def infer_type(fields: pa.Array) -> pa.DataType:
    """The narrowest type that all of `fields` (binary) spell; null when all are empty."""
    values = fields.filter(pc.not_equal(pc.binary_length(fields), 0))
    if not len(values):
        return pa.null()
    for kind, spelling in SPELLED:
        if pc.all(pc.match_substring_regex(values, spelling)).as_py() and _cast(values, kind) is not None:
            return kind
    return pa.string()


def convert(block: Block, schema: pa.Schema, first_row: int) -> Block:
    """`block`, whose data are binary fields, under `schema`; values that do not convert make their rows bad."""
    fields: pa.RecordBatch = block.data
    offsets = block.part(0, block.rows)[1]
    bad: dict[int, str] = {}
    for field in schema:
        column = fields.column(field.name)
        for i in _misfits(column, field.type):
            bad.setdefault(i, _why_not(field, column[i].as_py()))
    good = fields if not bad else fields.filter(pa.array(i not in bad for i in range(fields.num_rows)))
    data = pa.record_batch([_cast(good.column(f.name), f.type) for f in schema], schema=schema)
    rows = [
        BadRow(int(offsets[i]), why, first_row + int(offsets[i]) + 1 + HEADER_RECORDS, _record(fields, i))
        for i, why in bad.items()
    ]
    return Block(block.rows, data, tuple(sorted([*block.bad, *rows], key=lambda b: b.offset)))


def _why_not(field: pa.Field, value: bytes) -> str:
    if field.type == pa.string():
        return f"column '{field.name}' is not UTF-8: {_text(value[:MOST_SHOWN])!r}; convert the file to UTF-8"
    shown = repr(_text(value[:MOST_SHOWN]))
    return f"column '{field.name}' is {field.type}, the value is {shown}; data.schema can give another type"


def _cast(fields: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Binary `fields` as `kind`, or None when one of them does not convert."""
    try:
        text = fields.cast(pa.string())
        if pc.any(pc.match_substring(text, MARK)).as_py():
            return None
        if kind == pa.string():
            return text
        return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text).cast(kind)
    except pa.ArrowException:
        return None


def _misfits(fields: pa.Array, kind: pa.DataType) -> list[int]:
    return misfits(len(fields), lambda start, stop: _cast(fields[start:stop], kind) is not None)


def _take_invalid(invalid: list[BadRow], done: int, rows: int) -> tuple[BadRow, ...]:
    """Take out of `invalid` those that lie before the last of the next `rows` good rows; `done` rows lie behind."""
    taken = 0
    while taken < len(invalid) and invalid[taken].offset - done - taken < rows:
        taken += 1
    bad = tuple(replace(b, offset=b.offset - done) for b in invalid[:taken])
    del invalid[:taken]
    return bad


def _batches(reader: pa.csv.CSVStreamingReader, file: InputFile, source: MarkedFile) -> Iterator[pa.RecordBatch]:
    """The batches, each when the next one is known: the last before a read that failed may end in half a row."""
    held: pa.RecordBatch | None = None
    error: Exception | None = None
    while error is None:
        try:
            batch = reader.read_next_batch()
        except (StopIteration, pa.ArrowException) as end:
            error = end
        else:
            if held is not None:
                yield held
            held = batch
    if source.failure is not None:
        raise source.failure
    if held is not None:
        yield held
    if not isinstance(error, StopIteration):
        raise _unreadable(file, error) from error


def _text_bytes(fields: pa.RecordBatch) -> int:
    """About how much of the file the fields took: pyarrow itself reads some thirty blocks ahead."""
    lengths = (int(pc.sum(pc.binary_length(column)).as_py() or 0) for column in fields.columns)
    return sum(lengths) + int(fields.num_rows) * int(fields.num_columns)


def _record(fields: pa.RecordBatch, index: int) -> str:
    row = {name: _text(fields.column(name)[index].as_py()) for name in fields.schema.names}
    return json.dumps(row, ensure_ascii=False)


def _text(value: bytes) -> str:
    return shown(value.decode("utf-8", "backslashreplace"))


def _unreadable(file: InputFile, error: Exception) -> InputError:
    return InputError(
        f"{file} cannot be read as CSV ({error}); it begins like {file.looks_like()}. A quote that is not closed"
        f" and a row of more than {BLOCK_BYTES >> 20} MiB do this too; Parquet and JSONL take longer rows"
    )
