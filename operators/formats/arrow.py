"""Arrow IPC files (also called Feather 2); streams of it are only read."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, TypeAlias

import pyarrow as pa
import pyarrow.ipc

from operators.formats.columnar import checked_block
from operators.formats.format import NO_COMPRESSION, Format, Writer, too_deep
from operators.formats.reader import Reader, RowBlock
from operators.rows.arrow_types import plain_schema
from pipeline.api.errors import InputError

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

    def blocks(self, schema: pa.Schema, skip: int) -> Iterator[RowBlock]:
        with self._open() as (reader, source):
            is_file = isinstance(reader, pa.ipc.RecordBatchFileReader)
            for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
                self.bytes_read = source.tell()
                yield checked_block(batch, schema) if batch.num_rows > skip else RowBlock(batch.num_rows)
                skip = max(0, skip - batch.num_rows)

    @contextmanager
    def _open(self) -> Iterator[tuple[IpcReader, pa.NativeFile]]:
        path = self.file.local
        source = pa.PythonFile(self.file.open(), mode="r") if path is None else pa.memory_map(str(path))
        is_file = source.read(len(FILE_MAGIC)) == FILE_MAGIC
        source.seek(0)
        reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
        with source, reader:
            yield reader, source


def write(table: pa.Table, file: BinaryIO, compression: str, level: int | None) -> None:
    """Write `table` as an Arrow IPC file; see Writer. Without compression it can be memory-mapped."""
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
    writer=Writer((NO_COMPRESSION, "zstd", "lz4"), write, check),
)
