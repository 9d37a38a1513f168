"""Atomic file writes: write under a temporary name, fsync, rename."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from pipeline.api.records import LINEAGE, ROW, Shard
from pipeline.system.disk_errors import writing
from pipeline.system.failpoints import Failpoint, reached

TEMPORARY_SUFFIX = ".tmp"
GROUP_BYTES = 32 << 20


def part_name(chunk: int, suffix: str = "parquet", split: str = "") -> str:
    """Return the file name of a chunk, for example part-00000.parquet, or of its rows in a split:
    part-00000-train.parquet."""
    return f"part-{chunk:05d}{split and '-'}{split}.{suffix}"


def sorted_by_identity(table: pa.Table) -> pa.Table:
    """Return `table` sorted by (row, lineage)."""
    rows = table.column(ROW.name)
    if LINEAGE.name not in table.schema.names or table.column(LINEAGE.name).null_count == len(table):
        return table.take(pa.compute.sort_indices(rows))
    lineage = [tuple(v) if v is not None else () for v in table.column(LINEAGE.name).to_pylist()]
    keys = list(zip(rows.to_pylist(), lineage, strict=True))
    return table.take(pa.array(sorted(range(len(keys)), key=keys.__getitem__), pa.int64()))


def repeated_row(table: pa.Table) -> int | None:
    """Return the `row` of two rows with the same (row, lineage) in a table that is sorted by it; None if there are
    none."""
    rows = table.column(ROW.name).to_numpy()
    twins = np.flatnonzero(rows[1:] == rows[:-1])
    if LINEAGE.name in table.schema.names and len(twins):
        lineage = table.column(LINEAGE.name).to_pylist()
        twins = np.array([i for i in twins if lineage[i] == lineage[i + 1]], np.int64)
    return int(rows[twins[0]]) if len(twins) else None


def write_parquet(table: pa.Table, file: BinaryIO, compression: str = "zstd", level: int | None = None) -> None:
    """Write `table` as a Parquet file: of no rows one without row groups, since `datasets` cannot read an empty one; of
    columns of bytes, as images, one with row groups of GROUP_BYTES, since readers have a whole one in memory."""
    has_bytes = any(holds_bytes(field.type) for field in table.schema)
    rows = max(1, table.num_rows * GROUP_BYTES // max(table.nbytes, GROUP_BYTES)) if has_bytes else None
    with pq.ParquetWriter(file, table.schema, compression=compression, compression_level=level) as writer:
        if table.num_rows:
            writer.write_table(table, rows)


def holds_bytes(kind: pa.DataType) -> bool:
    """Return True for a type of bytes, also inside of lists and structs."""
    own = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return bool(own) or any(holds_bytes(kind.field(i).type) for i in range(kind.num_fields))


def write_parquet_shard(table: pa.Table, path: Path, chunk: int) -> Shard:
    """Write `table` as a Parquet shard; see `write_table_shard`."""
    return write_table_shard(table, path, chunk, write_parquet)


def write_table_shard(table: pa.Table, path: Path, chunk: int, write: Callable[[pa.Table, BinaryIO], object]) -> Shard:
    """Write `table` with `write` to a temporary file beside `path`, and fsync it. On failure remove it and raise
    StorageError."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with writing(path), removed_on_failure(temporary):
        make_directory(path.parent)
        with temporary.open("wb") as file:
            reached(Failpoint.SHARD_OPENED)
            write(table, file)
            file.flush()
            reached(Failpoint.SHARD_WRITTEN)
            os.fsync(file.fileno())
        reached(Failpoint.SHARD_FSYNCED)
        size = temporary.stat().st_size
        # Parquet has names of its own for the items of a list.
        schema = pq.read_schema(temporary) if path.suffix == ".parquet" else table.schema
        return Shard(chunk, path, temporary, table.num_rows, size, sha256_of(temporary), schema)


def rename_shards(shards: Sequence[Shard]) -> None:
    """Rename every shard to its final name and make the renames durable."""
    for shard in shards:
        with writing(shard.path):
            shard.temporary.replace(shard.path)
        reached(Failpoint.SHARD_RENAMED)
    for directory in {shard.path.parent for shard in shards}:
        with writing(directory):
            sync_directory(directory)
        reached(Failpoint.DIRECTORY_FSYNCED)


def make_directory(directory: Path) -> None:
    """Make `directory` and its missing parents, and make their names durable."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, text: str | Iterable[str]) -> None:
    """Replace the content of `path` by `text`, or by its concatenated pieces; see `replacing`."""
    with replacing(path) as file:
        file.writelines(piece.encode() for piece in ([text] if isinstance(text, str) else text))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Replace the content of `path` by what the block writes, atomically: after a StorageError it is unchanged."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with writing(path), removed_on_failure(temporary):
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        reached(Failpoint.FILE_WRITTEN)
        temporary.replace(path)


@contextmanager
def removed_on_failure(temporary: Path) -> Iterator[None]:
    """Remove `temporary` if the block raises, so that a full disk gets its space back."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def sha256_of(path: Path) -> str:
    """Return the hex digest of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
