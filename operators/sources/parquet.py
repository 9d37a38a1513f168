"""Parquet files, a few thousand rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from operators.sources.checked import checked
from operators.sources.files import looks_like, unreadable
from operators.sources.reader import Block, Types, refuse_types
from operators.sources.schemas import plain_schema
from pipeline.errors import InputError

READ_ROWS = 8192


class ParquetReader:
    """Reads a Parquet file; see Reader. Row groups that are skipped are not read."""

    optional_columns = False

    def __init__(self, path: Path, types: Types | None = None) -> None:
        refuse_types(path, types)
        self.path = path
        self.bytes_read = 0

    def schema(self, sample_rows: int) -> pa.Schema:
        """See Reader.schema."""
        with self._open() as file:
            return plain_schema(file.schema_arrow)

    def total_rows(self) -> int:
        """From the footer."""
        with self._open() as file:
            return int(file.metadata.num_rows)

    def blocks(self, schema: pa.Schema, skip: int) -> Iterator[Block]:
        """See Reader.blocks."""
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
        try:
            return pq.ParquetFile(self.path)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # Arrow's own have none
                raise unreadable(self.path, error) from error
            raise InputError(
                f"{self.path} is not a Parquet file ({error}); it begins like {looks_like(self.path)}."
                " If it is another format, write data.format="
            ) from error
