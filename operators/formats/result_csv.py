"""CSV of results: how values become fields of a file, and fields values again.

A null is an empty field, an empty text is `""`. Lists and objects are JSON. A text of a file with marks (the name ends
in `.defused.csv`) that begins like a formula, or with the mark, has one more mark before it: a spreadsheet that opens
the file runs none.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from operators.formats.unpack import packed
from operators.rows.polars_frames import frames
from pipeline.api.errors import ConfigError
from pipeline.api.keys import one_of, when_given
from pipeline.api.records import python_values, record_json

SEPARATORS = (",", ";", "\t", "|")
DEFUSED = ".defused"
"""Stands in the name of a file whose texts have marks, before its format."""
MARK = "'"
_RUN = f"^[{MARK}=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
"""Beginnings of texts that get a mark: what spreadsheets run, also in full width, and the mark."""
BOM = "\ufeff"
BLOCK_BYTES = 1 << 26
"""Longest row that can be read back; a file is a chunk, and seldom as long."""
_ROWS = 8192
_READ_AS = {"null": "string", "halffloat": "float", "large_string": "string", "string_view": "string"}
"""Types that Arrow does not read from CSV, and what holds their values."""


@dataclass(kw_only=True)
class DefuseKey:
    """The key of formats whose texts may have marks.

    Args:
        defuse: put ' before texts that a spreadsheet would run (they begin with = + - @ ...) and before those that
            begin with it; files whose names have .defused are read without these marks.
    """

    defuse: bool = when_given(False)


@dataclass(kw_only=True)
class CsvKeys(DefuseKey):
    """Keys of CSV.

    Args:
        separator: what stands between the fields of CSV: , ; | or a tab.
        bom: begin a CSV file with the mark by which Excel knows UTF-8.
    """

    separator: str = when_given(",", *one_of(SEPARATORS))
    bom: bool = when_given(False)


def marked(texts: pa.Array) -> pa.Array:
    """Put a mark before each text that a spreadsheet would run, and before each that begins with the mark."""
    return pc.if_else(pc.match_substring_regex(texts, _RUN), pc.binary_join_element_wise(MARK, texts, ""), texts)


def unmarked(texts: pa.Array) -> pa.Array:
    """Take the marks off that `marked` has put there."""
    return pc.if_else(pc.starts_with(texts, MARK), pc.utf8_slice_codeunits(texts, 1), texts)


def has_marks(name: str) -> bool:
    """Return True if the name of a file says that its texts have marks."""
    stem, _, ending = name.removesuffix(".gz").removesuffix(".zst").rpartition(".")
    return bool(ending) and stem.endswith(DEFUSED)


def is_text(kind: pa.DataType) -> bool:
    """Return True for a type whose values are texts, which may get marks."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def texts_of(column: pa.Array) -> pa.Array:
    """Return the values of a column as texts from which the type of the column makes them again; nulls stay."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):  # as Python writes them, from which readers tell them from whole numbers
        shortest = column.cast(pa.string()).to_pylist() if column.type != pa.float64() else column.to_pylist()
        return pa.array([None if value is None else repr(float(value)) for value in shortest], pa.string())
    if pa.types.is_nested(column.type):
        texts = [None if value is None else record_json(value) for value in python_values(column)]
        return pa.array(texts, pa.string())
    return column.cast(pa.string())


def write(
    table: pa.Table, file: BinaryIO, compression: str, level: int | None, separator: str, bom: bool, defuse: bool
) -> None:
    """Write `table` with a header line; see the module, and Format."""
    names = _defused_if(pa.array(table.schema.names, pa.string()), defuse)
    text = io.BytesIO()
    text.write((BOM * bom + separator.join(_quoted(names, separator).to_pylist())).encode() + b"\n")
    for batch in table.to_batches(_ROWS):
        fields = [_fields(column, separator, defuse) for column in batch.columns]
        lines = pc.binary_join_element_wise(*fields, separator)
        for line in lines.to_pylist():
            text.write(line.encode() + b"\n")
    packed(text.getbuffer(), file, compression, level)


def _fields(column: pa.Array, separator: str, defuse: bool) -> pa.Array:
    texts = _defused_if(texts_of(column), defuse and is_text(column.type))
    return pc.fill_null(_quoted(texts, separator), "")


def _defused_if(texts: pa.Array, defuse: bool) -> pa.Array:
    return marked(texts) if defuse else texts


def _quoted(texts: pa.Array, separator: str) -> pa.Array:
    """Put quotes around texts that need them: with a separator, a quote or a line break, empty ones, and those that
    readers of a first line take for something else."""
    needed = pc.match_substring_regex(texts, f'^$|[{re.escape(separator)}"\r\n]|^{BOM}|^sep=')
    inside = pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', "")
    return pc.if_else(needed, inside, texts)


def scan(files: list[Path], schema: Mapping[str, str]) -> pl.LazyFrame:
    """Scan CSV files of results."""
    results = CsvResults(files, schema)
    return frames(results.schema, lambda columns, rows: results.batches(columns))


class CsvResults:
    """CSV files of results, all with the columns `schema` (Arrow's names of types by column)."""

    def __init__(self, files: Sequence[Path], schema: Mapping[str, str]) -> None:
        self._files = files
        self._marks = has_marks(files[0].name)
        self.schema = pa.schema([(name, type_of(kind)) for name, kind in schema.items()])
        """The columns as they are read; objects, and lists with objects or times, are JSON texts."""
        names = _defused_if(pa.array(self.schema.names, pa.string()), self._marks).to_pylist()
        self._inside = dict(zip(self.schema.names, names, strict=True))
        self._separator = _separator(files[0], names)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all files, in order; of some columns."""
        names = [self._inside[name] for name in columns or self.schema.names]
        options = pa_csv.ConvertOptions(
            column_types={
                self._inside[field.name]: pa.string() if pa.types.is_nested(field.type) else field.type
                for field in self.schema
            },
            include_columns=names,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        how = pa_csv.ParseOptions(delimiter=self._separator, newlines_in_values=True)
        for file in self._files:
            with (
                pa.input_stream(str(file), compression="detect") as stream,
                pa_csv.open_csv(stream, pa_csv.ReadOptions(block_size=BLOCK_BYTES), how, options) as reader,
            ):
                for batch in reader:
                    fields = [self.schema.field(name) for name in columns or self.schema.names]
                    values = [self._plain(*each) for each in zip(batch.columns, fields, strict=True)]
                    yield pa.record_batch(values, schema=pa.schema(fields))

    def _plain(self, column: pa.Array, field: pa.Field) -> pa.Array:
        if pa.types.is_nested(field.type):
            return pa.array([text and json.loads(text) for text in column.to_pylist()], field.type)
        return unmarked(column) if self._marks and pa.types.is_string(column.type) else column


def _separator(file: Path, names: Sequence[str]) -> str:
    """Return what stands between the columns of a file of results, all of whose columns are known."""
    for separator in SEPARATORS:
        with pa.input_stream(str(file), compression="detect") as stream:
            text = io.TextIOWrapper(io.BufferedReader(stream), "utf-8-sig", newline="")
            if next(csv.reader(text, delimiter=separator), []) == list(names):
                return separator
    raise ConfigError(f"{file} has not the columns that were written: {', '.join(names)}; verify says what is damaged")


def type_of(name: str) -> pa.DataType:
    """Return the type of a column as it is read, from Arrow's name of its type; text for what is JSON."""
    if zoned := re.fullmatch(r"timestamp\[(\w+), tz=(.+)\]", name):
        return pa.timestamp(*zoned.groups())
    if decimal := re.fullmatch(r"decimal(?:32|64|128)\((\d+), (\d+)\)", name):
        return pa.decimal128(*map(int, decimal.groups()))
    if dictionary := re.fullmatch(r"dictionary<values=(.+), indices=.*>", name):
        return type_of(dictionary[1])
    if listed := re.fullmatch(r"(?:large_|fixed_size_)?list<\w+: (.+)>(?:\[(\d+)\])?", name):
        inner = type_of(listed[1])
        return pa.list_(inner, int(listed[2] or -1)) if is_of_json(inner, listed[1]) else pa.string()
    with suppress(ValueError):
        return pa.type_for_alias(_READ_AS.get(name, name))
    return pa.string()


def is_of_json(kind: pa.DataType, name: str) -> bool:
    """Return True if JSON has the values of the type `name`, read as `kind`, as they are."""
    if pa.types.is_nested(kind) or name in ("string", "large_string", "bool"):
        return True
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
