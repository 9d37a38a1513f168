"""The formats of the result files: encode a table as a file, and read a folder of files back."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from operators.rows.times import Most, most_of_parquet, most_of_polars
from operators.settings import OutputSettings
from pipeline.api.errors import SchemaError
from pipeline.system.atomic_files import write_parquet
from pipeline.system.result_files import known_to_polars
from pipeline.system.result_files import scan as scan_files

_PACKED = {"gzip": ".gz", "zstd": ".zst"}
"""Suffix of a text file that is compressed as a whole; the other formats compress inside."""
_NO_COMPRESSION = "none"
Write = Callable[[pa.Table, BinaryIO], None]
"""Writes a table into an open file. Equal tables give equal bytes."""


@dataclass(frozen=True)
class Format:
    """A format of result files."""

    check: Callable[[pa.Field], None]
    """Raises SchemaError for a column that such a file cannot hold."""
    write: Callable[[pa.Table, BinaryIO, str, int | None], None]
    """Takes a table, an open file, a compression and its level."""
    packed: bool = False
    """True if the file is compressed as a whole."""
    most: Most | None = None
    """The times that such a file can hold; None: all."""


def format_of(output: OutputSettings) -> tuple[str, Write]:
    """Return the extension that `output` asks for, and the function that writes such a file."""
    found, compression = FORMATS[output.format], output.compression
    ending = _PACKED.get(compression, "") if found.packed else ""
    return output.format + ending, lambda table, file: found.write(table, file, compression, output.compression_level)


def refuse_unwritable(schema: pa.Schema, output: OutputSettings) -> None:
    """Raise SchemaError for a column that `output.format` cannot hold: JSON has no bytes, Parquet no intervals."""
    for field in schema:
        FORMATS[output.format].check(field)


def _check_jsonl(field: pa.Field) -> None:
    if not known_to_polars(field.type):
        raise _not_writable(field, "JSON lines")
    if _holds_bytes(field.type):
        raise SchemaError(
            f"column '{field.name}' has type {field.type}, and JSON cannot hold bytes; write output=parquet or"
            " output=arrow, or take the column out"
        )


def _check_parquet(field: pa.Field) -> None:
    file = io.BytesIO()
    try:
        pq.write_table(pa.schema([field]).empty_table(), file)
        pq.read_schema(file)
    except pa.ArrowNotImplementedError as error:
        raise _not_writable(field, "Parquet files") from error
    except OSError as error:
        if "Scale" in str(error):
            raise _not_writable(field, "Parquet files") from error
        raise _too_deep(field, "Parquet") from error


def _check_arrow(field: pa.Field) -> None:
    try:
        _write_arrow(pa.table([pa.nulls(1, field.type)], pa.schema([field])), io.BytesIO(), _NO_COMPRESSION, None)
    except pa.ArrowInvalid as error:
        raise _too_deep(field, "Arrow") from error


def _not_writable(field: pa.Field, files: str) -> SchemaError:
    return SchemaError(
        f"column '{field.name}' has type {field.type}, which cannot be written into {files}; write output=arrow, or"
        " take the column out"
    )


def _too_deep(field: pa.Field, files: str) -> SchemaError:
    return SchemaError(
        f"column '{field.name}' is nested deeper than {files} files can be; read it as a text with"
        f" data.types={{{field.name}: json}}, write output=jsonl, or take the column out"
    )


def _holds_bytes(kind: pa.DataType) -> bool:
    own = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return bool(own) or any(_holds_bytes(kind.field(i).type) for i in range(kind.num_fields))


def scan(folder: Path) -> pl.LazyFrame:
    """Return the rows of all files of one sink, in the order of the files, without empty files (JSON lines of no rows).

    Raises:
        FileNotFoundError: there is no file in `folder`.
    """
    files = sorted(folder.glob("part-*"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no part-* file")
    found = scan_files([file for file in files if not _is_empty(file)])
    return pl.LazyFrame() if found is None else found


def _write_arrow(table: pa.Table, file: BinaryIO, compression: str, level: int | None) -> None:
    codec = None if compression == _NO_COMPRESSION else pa.Codec(compression, compression_level=level)
    with pa.ipc.new_file(file, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)


def _write_jsonl(table: pa.Table, file: BinaryIO, compression: str, level: int | None) -> None:
    text = io.BytesIO()
    pl.DataFrame(table).write_ndjson(text)
    if compression == _NO_COMPRESSION:
        file.write(text.getbuffer())
    else:  # Arrow's gzip header has neither a time nor a name
        file.write(pa.Codec(compression, compression_level=level).compress(text.getbuffer()))


def _is_empty(file: Path) -> bool:
    with pa.input_stream(str(file), compression="detect") as stream:
        return not stream.read(1)


FORMATS: Mapping[str, Format] = {
    "parquet": Format(_check_parquet, write_parquet, most=most_of_parquet),
    "jsonl": Format(_check_jsonl, _write_jsonl, packed=True, most=most_of_polars),
    "arrow": Format(_check_arrow, _write_arrow),
}
"""By `output.format`, which also begins the ending of the files' names. A new format is a line here, one in
`settings.COMPRESSIONS` and one in `result_files.SCANS`."""
