"""Arrow IPC files (also called Feather 2) and streams, of which results are files; and record batches as blocks, also
those of Parquet. A row whose bytes do not fit its type is bad."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc

from operators.formats.format import Format, too_deep
from operators.formats.reader import Reader, RowBlock
from operators.formats.unpack import NO_COMPRESSION
from operators.rows.arrow_types import plain_schema
from operators.rows.polars_frames import scan_typed
from pipeline.api.errors import InputError
from pipeline.api.records import Reject, python_values, record_json

FILE_MAGIC = b"ARROW1"
IpcReader: TypeAlias = pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader


class ArrowReader(Reader):
    """Reads an Arrow IPC file or stream, memory-mapped, so that a record batch of any size takes no memory."""

    def schema(self, sample_rows: int) -> pa.Schema:
        with self._open() as (reader, _):
            found = plain_schema(reader.schema)
        for field in found:
            try:
                pa.nulls(1, field.type).take(pa.array([0]))
            except pa.ArrowNotImplementedError as error:
                raise InputError(
                    f"column '{field.name}' of {self.file} has type {field.type}, of which Arrow cannot take single"
                    " rows; write its values plainly (pyarrow.compute.run_end_decode), or take it out"
                ) from error
        return found

    def total_rows(self) -> int | None:
        """Count the rows by the headers of the batches; None for a stream."""
        with self._open() as (reader, _):
            return int(reader.count_rows()) if isinstance(reader, pa.ipc.RecordBatchFileReader) else None

    def blocks(self, schema: pa.Schema, first: int, start: int) -> Iterator[RowBlock]:
        with self._open() as (reader, source):
            is_file = isinstance(reader, pa.ipc.RecordBatchFileReader)
            for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
                self.bytes_read, rows = source.tell(), batch.num_rows
                skipped = first + rows <= start
                yield RowBlock(first, rows) if skipped else checked_block(batch, schema, first, str(self.file))
                first += rows

    @contextmanager
    def _open(self) -> Iterator[tuple[IpcReader, pa.NativeFile]]:
        path = self.file.local
        source = pa.PythonFile(self.file.open(), mode="r") if path is None else pa.memory_map(str(path))
        is_file = source.read(len(FILE_MAGIC)) == FILE_MAGIC
        source.seek(0)
        reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
        with source, reader:
            yield reader, source


def checked_block(batch: pa.RecordBatch, schema: pa.Schema, first: int, file: str) -> RowBlock:
    """Cast `batch` to `schema`, without the rows that are not valid (text that is no UTF-8, offsets outside the data).

    Raises:
        pyarrow.ArrowException: the batch is broken as a whole.
    """
    batch.validate()  # lengths and buffers; if they are wrong, rows cannot be separated
    if _is_valid(batch):
        return RowBlock(first, batch.num_rows, batch.select(schema.names).cast(schema))
    valid = np.array([_is_valid(batch.slice(i, 1)) for i in range(batch.num_rows)])
    bad = tuple(Reject(first + i, *_broken(batch.slice(i, 1)), file=file) for i in np.flatnonzero(~valid).tolist())
    return RowBlock(first, batch.num_rows, batch.filter(pa.array(valid)).select(schema.names).cast(schema), bad)


def _is_valid(data: pa.RecordBatch | pa.Array) -> bool:
    try:
        data.validate(full=True)
    except pa.ArrowException:
        return False
    return True


def _broken(row: pa.RecordBatch) -> tuple[str, str]:
    """Return the reason to reject a row, and what can be shown of it."""
    columns = dict(zip(row.schema.names, row.columns, strict=True))
    broken = {name: _escaped(column) for name, column in columns.items() if not _is_valid(column)}
    name, text = next(iter(broken.items()), ("", None))
    why = "is damaged; write the file again" if text is None else "is not text in UTF-8; write the file again in UTF-8"
    record = {
        name: (broken[name] or "(cannot be read)") if name in broken else python_values(column)[0]
        for name, column in columns.items()
    }
    return f"column '{name}' {why}", record_json(record)


def _escaped(column: pa.Array) -> str | None:
    """Return a text that is not UTF-8 with Python escapes; None if its bytes cannot be read, or are no text."""
    is_large = pa.types.is_large_string(column.type)
    if not is_large and not pa.types.is_string(column.type):
        return None
    as_bytes = column.cast(pa.large_binary() if is_large else pa.binary())
    return str(as_bytes[0].as_py(), "utf-8", "backslashreplace") if _is_valid(as_bytes) else None


def write(table: pa.Table, file: BinaryIO, compression: str, level: int | None) -> None:
    """Write `table` as an Arrow IPC file; see Format. Without compression it can be memory-mapped."""
    codec = None if compression == NO_COMPRESSION else pa.Codec(compression, compression_level=level)
    with pa.ipc.new_file(file, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)


def check(field: pa.Field) -> None:
    """Raise SchemaError for a column that is nested too deeply."""
    try:
        write(pa.table([pa.nulls(1, field.type)], pa.schema([field])), io.BytesIO(), NO_COMPRESSION, None)
    except pa.ArrowInvalid as error:
        raise too_deep(field, "Arrow") from error


ARROW = Format(
    "arrow",
    ArrowReader,
    (".arrow", ".arrows", ".feather", ".ipc"),
    hub="arrow",
    compressions=(NO_COMPRESSION, "zstd", "lz4"),
    write=write,
    check=check,
    scan=lambda files, schema: scan_typed("arrow", files, pl.scan_ipc),
    bytes=True,
)
