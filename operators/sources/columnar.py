"""Parquet files; Arrow IPC files (also called Feather 2) and streams. A row whose bytes do not fit its type is bad."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from operators.rows.arrow_types import plain_schema
from operators.sources.reader import BadRow, Reader, RowBlock
from pipeline.api.errors import InputError
from pipeline.api.records import python_values, record_json

READ_ROWS = 8192
FILE_MAGIC = b"ARROW1"
IpcReader: TypeAlias = pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader


class ParquetReader(Reader):
    """Reads a Parquet file, a few thousand rows at a time. Skipped row groups are not read."""

    format = "parquet"
    extensions = (".parquet", ".pq")
    _rows: int | None = None

    def schema(self, sample_rows: int) -> pa.Schema:
        with self._open() as file:
            self._rows = file.metadata.num_rows  # so that a remote footer is fetched once
            return plain_schema(file.schema_arrow)

    def total_rows(self) -> int:
        if self._rows is None:
            with self._open() as file:
                self._rows = int(file.metadata.num_rows)
        return self._rows

    def blocks(self, schema: pa.Schema, skip: int) -> Iterator[RowBlock]:
        with self._open() as file:
            for group in range(file.metadata.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if rows <= skip:
                    skip -= rows
                    yield RowBlock(rows)
                    continue
                skip = 0
                for batch in file.iter_batches(READ_ROWS, row_groups=[group], use_threads=False):
                    yield _checked(batch, schema)

    def _open(self) -> pq.ParquetFile:
        """Read the footer. The data are read on demand; from an object store in few, larger ranges."""
        path = self.file.local
        if path is not None:
            return pq.ParquetFile(path)
        return pq.ParquetFile(pa.PythonFile(self.file.open(), mode="r"), pre_buffer=True)


class ArrowReader(Reader):
    """Reads an Arrow IPC file or stream, memory-mapped, so that a record batch of any size takes no memory."""

    format = "arrow"
    extensions = (".arrow", ".arrows", ".feather", ".ipc")

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
                yield _checked(batch, schema) if batch.num_rows > skip else RowBlock(batch.num_rows)
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


def _checked(batch: pa.RecordBatch, schema: pa.Schema) -> RowBlock:
    """Cast `batch` to `schema`, without the rows that are not valid (text that is no UTF-8, offsets outside the data).

    Raises:
        pyarrow.ArrowException: the batch is broken as a whole.
    """
    batch.validate()  # lengths and buffers; if they are wrong, rows cannot be separated
    if _is_valid(batch):
        return RowBlock(batch.num_rows, batch.select(schema.names).cast(schema))
    valid = np.array([_is_valid(batch.slice(i, 1)) for i in range(batch.num_rows)])
    bad = tuple(_bad_row(batch.slice(i, 1), i) for i in np.flatnonzero(~valid).tolist())
    return RowBlock(batch.num_rows, batch.filter(pa.array(valid)).select(schema.names).cast(schema), bad)


def _is_valid(data: pa.RecordBatch | pa.Array) -> bool:
    try:
        data.validate(full=True)
    except pa.ArrowException:
        return False
    return True


def _bad_row(row: pa.RecordBatch, offset: int) -> BadRow:
    columns = dict(zip(row.schema.names, row.columns, strict=True))
    broken = {name: _escaped(column) for name, column in columns.items() if not _is_valid(column)}
    name, text = next(iter(broken.items()), ("", None))
    why = "is damaged; write the file again" if text is None else "is not text in UTF-8; write the file again in UTF-8"
    record = {
        name: (broken[name] or "(cannot be read)") if name in broken else python_values(column)[0]
        for name, column in columns.items()
    }
    return BadRow(offset, f"column '{name}' {why}", None, record_json(record))


def _escaped(column: pa.Array) -> str | None:
    """Return a text that is not UTF-8 with Python escapes; None if its bytes cannot be read, or are no text."""
    is_large = pa.types.is_large_string(column.type)
    if not is_large and not pa.types.is_string(column.type):
        return None
    as_bytes = column.cast(pa.large_binary() if is_large else pa.binary())
    return str(as_bytes[0].as_py(), "utf-8", "backslashreplace") if _is_valid(as_bytes) else None
