"""Rows of a Python program, written as the input file of a run."""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.api.errors import ConfigError
from pipeline.system.atomic_files import TEMPORARY_SUFFIX
from pipeline.system.disk_errors import writing

BATCH_ROWS = 8192
"""Rows of an iterable that are in memory at a time."""
TAKES = (
    "rows is a polars or pandas frame, a pyarrow table or reader, a Hugging Face dataset, or an iterable of dicts or of"
    " prompts"
)


def write_rows(rows: Any, path: Path, *, keep: bool = False) -> None:
    """Write `rows` as a Parquet file, unless it holds just these already: a resumed run is to find its input unchanged.

    Args:
        keep: refuse to replace a file with other rows.

    Raises:
        ConfigError: they are no rows, a row does not fit the columns of those before it, or there are other rows.
        StorageError: the file cannot be written.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with writing(temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write(batches_of(rows), temporary)
            if not path.is_file() or _digest(path) != _digest(temporary):
                if keep and path.is_file():
                    raise ConfigError(
                        f"{path.parent} has a run with other rows; name another directory, or give overwrite=True to"
                        " begin anew with these"
                    )
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def batches_of(rows: Any) -> Iterator[pa.Table]:
    """Yield `rows` as tables with the same columns; raises ConfigError if they are no rows."""
    kind = type(rows).__module__.partition(".")[0]
    if kind == "polars":
        polars = sys.modules["polars"]
        frame = rows.collect() if isinstance(rows, polars.LazyFrame) else rows
        if not isinstance(frame, polars.DataFrame):
            raise ConfigError(f"rows is a polars {type(rows).__name__}; give a frame: series.to_frame('prompt')")
        if foreign := [name for name, type_ in frame.schema.items() if _is_foreign(type_)]:
            raise ConfigError(
                f"rows: column '{foreign[0]}' has type {frame.schema[foreign[0]]}, which Arrow has not; make numbers or"
                " texts of it, or take it out"
            )
        yield frame.to_arrow()
    elif kind == "pandas":
        yield pa.Table.from_pandas(rows, preserve_index=False)
    elif kind == "datasets":
        if isinstance(rows, dict):
            raise ConfigError(f"rows is a {type(rows).__name__} of several splits; give one of them: dataset['train']")
        yield from rows.with_format("arrow").iter(BATCH_ROWS)
    elif isinstance(rows, pa.Table):
        yield rows
    elif isinstance(rows, pa.RecordBatch):
        yield pa.Table.from_batches([rows])
    elif isinstance(rows, pa.RecordBatchReader):
        yield from (pa.Table.from_batches([batch]) for batch in rows)
    elif isinstance(rows, str | bytes | dict) or not isinstance(rows, Iterable):
        raise ConfigError(f"rows is {type(rows).__name__}; {TAKES}")
    else:
        yield from _of_items(iter(rows))


def _is_foreign(kind: Any) -> bool:
    """Return True for a type of polars that Arrow has not, also inside of lists and structs: of objects it would get
    the addresses."""
    inner = [field.dtype for field in getattr(kind, "fields", ())]
    inner += [kind.inner] if hasattr(kind, "inner") else []
    return str(kind) in ("Object", "Int128", "UInt128") or any(map(_is_foreign, inner))


def _of_items(items: Iterator[Any]) -> Iterator[pa.Table]:
    """Yield tables of dicts, or of prompts as the column `prompt`."""
    schema: pa.Schema | None = None
    begun = 0
    while some := list(itertools.islice(items, BATCH_ROWS)):
        dicts = [{"prompt": item} if isinstance(item, str) else item for item in some]
        if wrong := next((item for item in dicts if not isinstance(item, dict)), None):
            raise ConfigError(f"rows has a {type(wrong).__name__}; {TAKES}")
        try:
            table = pa.Table.from_pylist(dicts, schema=schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"rows {begun} to {begun + len(some) - 1} do not become columns: {error}; give the values of a key one"
                " type, or a table with a schema"
            ) from error
        schema, begun = table.schema, begun + len(some)
        yield table


def _write(tables: Iterator[pa.Table], path: Path) -> None:
    first = next(tables, None)
    if first is None:
        raise ConfigError("rows is empty; give one row or more")
    with pq.ParquetWriter(path, first.schema) as writer:
        for table in itertools.chain([first], tables):
            writer.write_table(table.cast(first.schema), BATCH_ROWS)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
