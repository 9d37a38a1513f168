"""Parquet files."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from operators.formats.columnar import checked_block
from operators.formats.format import Format, Writer, too_deep, unknown_type
from operators.formats.reader import Reader, RowBlock
from operators.rows.arrow_types import plain_schema
from operators.rows.times import most_of_parquet
from pipeline.system.atomic_files import write_parquet

READ_ROWS = 8192


class ParquetReader(Reader):
    """Reads a Parquet file, a few thousand rows at a time. Skipped row groups are not read."""

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
                    yield checked_block(batch, schema)

    def _open(self) -> pq.ParquetFile:
        """Read the footer. The data are read on demand; from an object store in few, larger ranges."""
        path = self.file.local
        if path is not None:
            return pq.ParquetFile(path)
        return pq.ParquetFile(pa.PythonFile(self.file.open(), mode="r"), pre_buffer=True)


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
    writer=Writer(("zstd", "snappy", "gzip", "lz4", "none"), write_parquet, check, most_of_parquet),
)
