"""Parquet files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cached_property

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from operators.formats.arrow import checked_block
from operators.formats.format import Format, too_deep, unknown_type
from operators.formats.reader import Reader, RowBlock
from operators.formats.unpack import NO_COMPRESSION
from operators.rows.arrow_types import plain_schema
from operators.rows.polars_frames import scan_typed
from operators.rows.times import times_of_parquet
from pipeline.system.atomic_files import write_parquet

READ_ROWS, READ_BYTES = 8192, 32 << 20
"""Rows and bytes, as the file's footer says them, that are read at a time; of images a file has few."""


class ParquetReader(Reader):
    """Reads a Parquet file, a few thousand rows at a time. Skipped row groups are not read."""

    @cached_property
    def _footer(self) -> tuple[int, pa.Schema]:
        """The number of rows and the columns, fetched once where the file is remote."""
        with self._open() as file:
            return file.metadata.num_rows, plain_schema(file.schema_arrow)

    def schema(self, sample_rows: int) -> pa.Schema:
        return self._footer[1]

    def total_rows(self) -> int:
        return self._footer[0]

    def blocks(self, schema: pa.Schema, first: int, start: int) -> Iterator[RowBlock]:
        with self._open() as file:
            for group in range(file.metadata.num_row_groups):
                rows, size = file.metadata.row_group(group).num_rows, file.metadata.row_group(group).total_byte_size
                if first + rows <= start:
                    yield RowBlock(first, rows)
                    first += rows
                    continue
                most = max(1, min(READ_ROWS, READ_BYTES * rows // max(size, 1)))
                for batch in file.iter_batches(most, row_groups=[group], use_threads=False):
                    yield checked_block(batch, schema, first, str(self.file))
                    first += batch.num_rows

    def _open(self) -> pq.ParquetFile:
        """Read the footer. The data are read on demand; from an object store in few, larger ranges."""
        source = self.file.local or pa.PythonFile(self.file.open(), mode="r")
        return pq.ParquetFile(source, pre_buffer=self.file.local is None)


def check(field: pa.Field) -> None:
    """Raise SchemaError for a column that a Parquet file cannot hold, as intervals."""
    file = io.BytesIO()
    try:
        pq.write_table(pa.schema([field]).empty_table(), file)
        pq.read_schema(file)
    except pa.ArrowNotImplementedError as error:
        raise unknown_type(field, "Parquet files") from error
    except OSError as error:
        raise (unknown_type(field, "Parquet files") if "Scale" in str(error) else too_deep(field, "Parquet")) from error


PARQUET = Format(
    "parquet",
    ParquetReader,
    (".parquet", ".pq"),
    hub="parquet",
    compressions=("zstd", "snappy", "gzip", "lz4", NO_COMPRESSION),
    write=write_parquet,
    check=check,
    scan=lambda files, schema: scan_typed("parquet", files, pl.scan_parquet),
    times=times_of_parquet,
    bytes=True,
)
