"""Files of metrics tables (metrics_table.py has their life): which of them have each row once, and what is in them.

Versions of this program have different columns: a column that a file does not have is null, and where a type has
changed the newest one counts; values that cannot be converted are null.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from polars.io.plugins import register_io_source

MERGED = b"merged_parts"
"""Metadata key of a Parquet file: JSON list of the streams that it was made of and that may still be there."""
COLUMNS = b"columns"
"""Metadata key of a Parquet file: JSON object of its types by column. Earlier versions wrote none, and no checksums."""
DIGEST = b"digest"
"""Metadata key of a batch of a stream: digest of its rows; none in earlier versions."""
_STREAM = re.compile(r"part-[\w-]+\.(arrows|parquet)")
UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError, pl.exceptions.PolarsError)
"""What a damaged file raises."""
GROUP_ROWS = 1 << 16
"""Rows that are read, and written as one row group, at once."""


def streams(directory: Path, name: str) -> list[Path]:
    """Return the streams of a table in the metrics directory `directory`, oldest first. Earlier versions wrote Parquet
    files instead."""
    return sorted(path for path in (directory / name).glob("part-*") if path.suffix in (".arrows", ".parquet"))


def without_repeats(directory: Path, name: str) -> list[Path]:
    """Return the files that have each row of a table once, oldest first."""
    parts = streams(directory, name)  # first: when they are removed the Parquet file has their rows
    merged = directory / f"{name}.parquet"
    if not merged.exists():
        return parts
    schema = _schema(merged)
    taken = () if schema is None else _taken(schema)
    return [merged, *(stream for stream in parts if stream.name not in taken)]


def _taken(schema: pa.Schema) -> Sequence[str]:
    """Return the names of the streams that a Parquet file was made of. Raises ChangedError."""
    names: Sequence[str] = ()
    with suppress(ValueError, TypeError):
        names = json.loads((schema.metadata or {}).get(MERGED, b"[]"))
        if all(_STREAM.fullmatch(name) for name in names):
            return names
    raise ChangedError(f"it names no streams that it was made of: {names}")


def scan(directory: Path, name: str) -> pl.LazyFrame | None:
    """Return all rows of a table, also while a run works; None if there are none."""
    files = [file for file in without_repeats(directory, name) if _schema(file) is not None]
    if not files or files == [directory / f"{name}.parquet"]:
        return pl.scan_parquet(files) if files else None
    schema = union(files)

    def frames(
        columns: list[str] | None, where: pl.Expr | None, limit: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        for table in read(without_repeats(directory, name), schema):
            frame = pl.DataFrame(table)[:limit]
            limit = None if limit is None else limit - len(frame)
            frame = frame if where is None else frame.filter(where)
            yield frame if columns is None else frame.select(columns)

    return register_io_source(frames, schema=pl.DataFrame(schema.empty_table()).schema)


def union(files: Sequence[Path], newest: Iterable[pa.Field] = ()) -> pa.Schema:
    """Return a schema with the columns of `newest` and of all files."""
    types: dict[str, pa.DataType] = {}
    for schema in (newest, *(_schema(file) or () for file in reversed(files))):
        for field in schema:
            types.setdefault(field.name, field.type)
    return pa.schema(types)


def read(
    files: Iterable[Path], schema: pa.Schema, ends_early: Callable[[Path, Exception], None] = lambda file, error: None
) -> Iterator[pa.Table]:
    """Iterate over the rows of `files` under `schema`, in few tables, each file up to the first batch that is cut or
    damaged. `ends_early`: called with a file of which the rest cannot be read."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for file in files:
        try:
            for batch in _batches(file):
                held.append(_under(schema, batch))
                rows += len(batch)
                if rows >= GROUP_ROWS:
                    yield pa.Table.from_batches(held)
                    held, rows = [], 0
        except UNREADABLE as error:
            ends_early(file, error)
    if held:
        yield pa.Table.from_batches(held)


def _batches(file: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(file)) as source:
        if file.suffix != ".parquet":
            yield from (batch for batch, _ in _of_stream(source))
            return
        for batch in pq.ParquetFile(source).iter_batches(GROUP_ROWS):
            batch.validate(full=True)
            yield batch


class ChangedError(pa.ArrowInvalid):
    """Rows that are not those that were written."""


def _of_stream(source: pa.NativeFile) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Yield the batches of a stream, and whether each has a digest."""
    reader = pa.ipc.open_stream(source)
    with suppress(StopIteration):
        while True:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            batch.validate(full=True)
            written = None if metadata is None else metadata.get(DIGEST)
            if written is not None and written != digest(batch):
                raise ChangedError("a batch has other rows than were written")
            yield batch, written is not None
    if source.tell() != source.size():
        raise ChangedError("it has an end that was not written")


def digest(batch: pa.RecordBatch) -> bytes:
    """Return a digest of the columns of `batch`, and of its buffers as a stream has them."""
    columns = str([(field.name, str(field.type)) for field in batch.schema])
    return hashlib.blake2b(columns.encode() + batch.serialize(), digest_size=16).hexdigest().encode()


def columns_of(schema: pa.Schema) -> str:
    """Return the types of `schema` by column, as JSON, as a Parquet file has them: not all types come back from it."""
    file = io.BytesIO()
    pq.ParquetWriter(file, schema.remove_metadata()).close()
    schema = pq.read_schema(file)
    return json.dumps({field.name: str(field.type) for field in schema})


def check(file: Path) -> bool:
    """Read all of a file of a metrics table. Returns False if an earlier version wrote it, so that values can have
    changed unseen. Raises ChangedError if it is damaged; UNREADABLE if it is damaged or, a stream, may end within a
    batch, as a killed attempt leaves it."""
    with pa.OSFile(str(file)) as source:
        if file.suffix == ".arrows":
            return all(sealed for _, sealed in _of_stream(source))
        pl.read_parquet_schema(file)  # it takes other things amiss than pyarrow
        parquet = pq.ParquetFile(source, page_checksum_verification=True)
        rows = 0
        for batch in parquet.iter_batches(GROUP_ROWS):
            batch.validate(full=True)
            rows += len(batch)
        groups = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
        if not rows == sum(groups) == parquet.metadata.num_rows:
            raise ChangedError(f"it has {rows:,} rows, and others were written")
        _taken(parquet.schema_arrow)
        written = (parquet.schema_arrow.metadata or {}).get(COLUMNS)
        if written is not None and written.decode() != columns_of(parquet.schema_arrow):
            raise ChangedError("its columns are not those that were written")
        return written is not None


def _schema(file: Path) -> pa.Schema | None:
    """Return the schema of a file; None if it cannot be read, or if a merge has just removed the file."""
    try:
        with pa.OSFile(str(file)) as source:
            schema = pq.read_schema(source) if file.suffix == ".parquet" else pa.ipc.open_stream(source).schema
            str(schema.names)  # a damaged one has names that are no texts
            return schema
    except UNREADABLE:
        return None


def _under(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of `batch` with the columns of `schema`."""
    columns_of_batch = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns = []
    for field in schema:
        try:
            columns.append(columns_of_batch[field.name].cast(field.type))
        except (KeyError, pa.ArrowException):
            columns.append(pa.nulls(len(batch), field.type))
    return pa.record_batch(columns, schema=schema)
