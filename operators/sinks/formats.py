"""The formats of the result files: how a table becomes the bytes of one, and how a folder of them is read back."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from operators.rows.sql import known_to_polars
from operators.settings import OutputSettings
from pipeline.api.errors import SchemaError

_SUFFIX_OF_JSONL = {"none": "jsonl", "gzip": "jsonl.gz", "zstd": "jsonl.zst"}
_NO_COMPRESSION = "none"
_NOT_WRITTEN = "cannot be written into {}; write output=arrow, or take the column out"


@dataclass(frozen=True)
class Format:
    """How a sink writes. `write`: a table, in one piece, into a file that is open. Equal tables give equal bytes."""

    suffix: str
    write: Callable[[pa.Table, BinaryIO], None]


def format_of(output: OutputSettings) -> Format:
    """The format that `output.format`, `compression` and `compression_level` ask for."""
    compression, level = output.compression, output.compression_level
    match output.format:
        case "jsonl":
            return Format(_SUFFIX_OF_JSONL[compression], lambda table, file: _jsonl(table, file, compression, level))
        case "arrow":
            return Format("arrow", lambda table, file: _arrow(table, file, compression, level))
        case _:
            return Format("parquet", lambda table, file: _parquet(table, file, compression, level))


def refuse_unwritable(schema: pa.Schema, output: OutputSettings) -> None:
    """Raise SchemaError for a column that `output.format` cannot hold: JSON knows no bytes, Parquet no intervals."""
    for field in schema:
        if output.format == "jsonl":
            _check_jsonl(field)
        elif output.format == "parquet":
            _check_parquet(field)
        else:
            _check_arrow(field)


def _check_jsonl(field: pa.Field) -> None:
    if not known_to_polars(field.type):
        raise SchemaError(f"column '{field.name}' has type {field.type}, which {_NOT_WRITTEN.format('JSON lines')}")
    if any(pa.types.is_binary(t) or pa.types.is_large_binary(t) or _is_fixed(t) for t in _types_in(field.type)):
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
        raise SchemaError(
            f"column '{field.name}' has type {field.type}, which {_NOT_WRITTEN.format('Parquet files')}"
        ) from error
    except OSError as error:
        raise _too_deep(field, "Parquet") from error


def _check_arrow(field: pa.Field) -> None:
    try:
        _arrow(pa.table([pa.nulls(1, field.type)], pa.schema([field])), io.BytesIO(), _NO_COMPRESSION, None)
    except pa.ArrowInvalid as error:
        raise _too_deep(field, "Arrow") from error


def _too_deep(field: pa.Field, files: str) -> SchemaError:
    return SchemaError(
        f"column '{field.name}' is nested deeper than {files} files can be; read it as a text with"
        f" data.schema={{{field.name}: json, ...}}, write output=jsonl, or take the column out"
    )


def scan(folder: Path) -> pl.LazyFrame:
    """The rows of all shards of one sink, in the order of the files. Files without a row are left out where their
    format cannot say what their columns are.

    Raises:
        FileNotFoundError: there is no shard in `folder`.
    """
    files = sorted(folder.glob("part-*"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no part-* file")
    if files[0].suffix == ".parquet":
        return pl.scan_parquet(files)
    if files[0].suffix == ".arrow":
        return pl.scan_ipc(files)
    filled = [file for file in files if not _is_without_rows(file)]
    return pl.scan_ndjson(filled, infer_schema_length=None) if filled else pl.LazyFrame()


def _parquet(table: pa.Table, file: BinaryIO, compression: str, level: int | None) -> None:
    pq.write_table(table, file, compression=compression, compression_level=level)


def _arrow(table: pa.Table, file: BinaryIO, compression: str, level: int | None) -> None:
    codec = None if compression == _NO_COMPRESSION else pa.Codec(compression, compression_level=level)
    with pa.ipc.new_file(file, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)


def _jsonl(table: pa.Table, file: BinaryIO, compression: str, level: int | None) -> None:
    text = io.BytesIO()
    pl.DataFrame(table).write_ndjson(text)
    if compression == _NO_COMPRESSION:
        file.write(text.getbuffer())
    else:  # Arrow's gzip header has neither a time nor a name
        file.write(pa.Codec(compression, compression_level=level).compress(text.getbuffer()))


def _is_without_rows(file: Path) -> bool:
    with pa.input_stream(str(file), compression="detect") as stream:
        return not stream.read(1)


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_binary(kind))


def _types_in(kind: pa.DataType) -> Iterator[pa.DataType]:
    yield kind
    for i in range(kind.num_fields):
        yield from _types_in(kind.field(i).type)
