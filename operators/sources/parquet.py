"""Parquet files, read a few thousand rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from operators.rows.arrow_types import plain_schema
from operators.sources.checked import checked
from operators.sources.reader import Block, Reader

READ_ROWS = 8192


class ParquetReader(Reader):
    """Reads a Parquet file. Skipped row groups are not read."""

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

    def blocks(self, schema: pa.Schema, skip: int) -> Iterator[Block]:
        with self._open() as file:
            for group in range(file.metadata.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if rows <= skip:
                    skip -= rows
                    yield Block(rows)
                    continue
                skip = 0
                for batch in file.iter_batches(READ_ROWS, row_groups=[group], use_threads=False):
                    yield checked(batch, schema)

    def _open(self) -> pq.ParquetFile:
        """Read the footer. The data are read on demand; from an object store in few, larger ranges."""
        path = self.file.local
        if path is not None:
            return pq.ParquetFile(path)
        return pq.ParquetFile(pa.PythonFile(self.file.open(), mode="r"), pre_buffer=True)
