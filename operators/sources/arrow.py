"""Arrow IPC files (also called Feather 2) and streams, memory-mapped, so that a record batch of any size takes no
memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import pyarrow as pa
import pyarrow.ipc

from operators.rows.arrow_types import plain_schema
from operators.sources.checked import checked
from operators.sources.reader import Block, Reader

FILE_MAGIC = b"ARROW1"
IpcReader: TypeAlias = pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader


class ArrowReader(Reader):
    """Reads an Arrow IPC file or stream."""

    format = "arrow"
    extensions = (".arrow", ".arrows", ".feather", ".ipc")

    def schema(self, sample_rows: int) -> pa.Schema:
        with self._open() as (reader, _):
            return plain_schema(reader.schema)

    def total_rows(self) -> int | None:
        """Count the rows by the headers of the batches; None for a stream."""
        with self._open() as (reader, _):
            return int(reader.count_rows()) if isinstance(reader, pa.ipc.RecordBatchFileReader) else None

    def blocks(self, schema: pa.Schema, skip: int) -> Iterator[Block]:
        with self._open() as (reader, source):
            for batch in _batches(reader):
                self.bytes_read = source.tell()
                yield checked(batch, schema) if batch.num_rows > skip else Block(batch.num_rows)
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


def _batches(reader: IpcReader) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        return (reader.get_batch(i) for i in range(reader.num_record_batches))
    return iter(reader)
