"""Rows of a Python program, written as the input file of a run."""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.api.errors import ConfigError
from pipeline.api.records import holds_nothing, without_null
from pipeline.python.images import as_data_url, as_file, bytes_in
from pipeline.run_dir.names import INPUT, INPUT_PARTS
from pipeline.run_dir.replacing import Replacing
from pipeline.system.disk_errors import writing

BATCH_ROWS, BATCH_BYTES = 8192, 64 << 20
"""Rows of an iterable that are in memory at a time, and bytes of images in them."""
TAKES = (
    "rows is a polars or pandas frame, a pyarrow table or reader, a Hugging Face dataset, or an iterable of dicts or of"
    " prompts"
)
ONE_TYPE = "give the values of a key one type, or a table with a schema"
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
_EXACT: Mapping[type, pa.DataType] = {
    str: pa.string(),
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    bytes: pa.binary(),
}
"""The types of Arrow that hold all values of a Python type that they accept."""


def write_rows(
    rows: Any, path: Path, results: Replacing | None = None, *, keep: bool = False, as_json: Collection[str] = ()
) -> None:
    """Write `rows` as a Parquet file, unless it holds just these already: a resumed run is to find its input unchanged.

    Args:
        results: what the run of these rows replaces in the file's directory; it is set aside with the rows before.
        keep: refuse to replace a file with other rows.
        as_json: keys of dicts whose values are kept as JSON text, as such columns of JSONL are.

    Raises:
        ConfigError: they are no rows, a value would become another one in its column, or there are other rows.
        StorageError: the file cannot be written.
    """
    temporary = path.with_name(INPUT_PARTS[0])
    with writing(temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write(batches_of(rows, as_json), temporary, path.with_name(INPUT_PARTS[1]))
            if not path.is_file() or _digest(path) != _digest(temporary):
                if keep and path.is_file():
                    raise ConfigError(
                        f"{path.parent} has a run with other rows; name another directory, or give overwrite=True to"
                        " begin anew with these"
                    )
                if results is None:
                    temporary.replace(path)
                else:
                    if path.is_file():
                        results.set_aside([INPUT])
                    results.place(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def batches_of(rows: Any, as_json: Collection[str] = ()) -> Iterator[pa.Table]:
    """Yield `rows` as tables, whose columns may differ; raises ConfigError if they are no rows."""
    kind = type(rows).__module__.partition(".")[0]
    if kind == "polars":
        yield _of_polars(rows)
    elif kind == "pandas":
        yield _of_pandas(rows)
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
        yield from _of_items(iter(rows), as_json)


def _of_polars(rows: Any) -> pa.Table:
    polars = sys.modules["polars"]
    frame = rows.collect() if isinstance(rows, polars.LazyFrame) else rows
    if not isinstance(frame, polars.DataFrame):
        raise ConfigError(f"rows is a polars {type(rows).__name__}; give a frame: series.to_frame('prompt')")
    if foreign := [name for name, kind in frame.schema.items() if _is_foreign(kind)]:
        raise ConfigError(
            f"rows: column '{foreign[0]}' has type {frame.schema[foreign[0]]}, which Arrow has not; make numbers or"
            " texts of it, or take it out"
        )
    return frame.to_arrow()


def _is_foreign(kind: Any) -> bool:
    """Return True for a type of polars that Arrow has not, also inside of lists and structs: of objects it would get
    the addresses."""
    inner = [field.dtype for field in getattr(kind, "fields", ())]
    inner += [kind.inner] if hasattr(kind, "inner") else []
    return str(kind) in ("Object", "Int128", "UInt128") or any(map(_is_foreign, inner))


def _of_pandas(rows: Any) -> pa.Table:
    names = [str(name) for name in rows.columns]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"rows has two columns '{twice}'; rename one")
    if index := [str(name) for name in rows.index.names if name is not None]:
        raise ConfigError(f"rows has the index {', '.join(index)}, which is no column; give rows.reset_index()")
    columns = {}
    for at, name in enumerate(names):
        column = rows.iloc[:, at]
        if column.dtype == object:
            values = map(as_file, column.where(column.notna(), None).tolist())
            columns[name] = _column(name, list(values), None, 0)
        else:
            columns[name] = pa.Table.from_pandas(column.to_frame(name), preserve_index=False)[name]
    return pa.table(columns)


def _of_items(items: Iterator[Any], as_json: Collection[str]) -> Iterator[pa.Table]:
    """Yield tables of dicts, or of prompts as the column `prompt`. A table has the keys of all its dicts."""
    types: dict[str, pa.DataType] = {}
    begun = 0
    while chunk := _some(items):
        dicts = [{"prompt": item} if isinstance(item, str) else item for item in chunk]
        for at, item in enumerate(dicts):
            if not isinstance(item, dict):
                raise ConfigError(f"rows[{begun + at}] is a {type(item).__name__}; {TAKES}")
            if not all(isinstance(key, str) for key in item):
                raise ConfigError(f"rows[{begun + at}] has a key that is no text: {list(item)}")
        columns = {}
        for name in dict.fromkeys(key for item in dicts for key in item):
            values = [item.get(name) for item in dicts]
            if name in as_json:
                values = [_as_json(name, value) for value in values]
            columns[name] = _column(name, values, types.get(name), begun)
        types |= {name: column.type for name, column in columns.items()}
        begun += len(chunk)
        yield pa.table(columns) if columns else pa.table({"prompt": pa.nulls(len(chunk))})


def _some(items: Iterator[Any]) -> list[Any]:
    """Return the next items: BATCH_ROWS, or fewer where their images have BATCH_BYTES."""
    some: list[Any] = []
    size = 0
    for item in itertools.islice(items, BATCH_ROWS):
        if isinstance(item, dict):
            item = {key: as_file(value) for key, value in item.items()}
            size += sum(map(bytes_in, item.values()))
        some.append(item)
        if size >= BATCH_BYTES:
            break
    return some


def _column(name: str, values: Sequence[Any], usual: pa.DataType | None, begun: int) -> pa.Array:
    """Return the values of key `name`, of rows from `begun` on, as a column of the type `usual` if they fit it, else of
    another; raises ConfigError if they would come back as others."""
    why = ""
    for kind in (usual, None, pa.uint64()):
        try:
            array = pa.array(values, kind)
        except _UNFIT as error:
            why = why or f": {error}"
            continue
        if holds_nothing(array.type):
            return pa.array([_as_json(name, value) for value in values], pa.string())
        if {_EXACT.get(of) for of in set(map(type, values)) - {type(None)}} <= {array.type}:
            return array
        back = zip(array.to_pylist(), values, strict=True)
        odd = next((i for i, pair in enumerate(back) if not _same(*pair)), None)
        if odd is None:
            return array
        why = why or f": row {begun + odd} would have {array[odd].as_py()!r} for {values[odd]!r}"
    first = next(value for value in values if value is not None)
    place = next((i for i, value in enumerate(values) if type(value) not in (type(first), type(None))), None)
    at = "" if place is None else f"; row {begun + place} has {values[place]!r}, and one before it {first!r}"
    raise ConfigError(f"the values of '{name}' in rows do not become one column{why}{at}; {ONE_TYPE}")


def _same(stored: Any, given: Any) -> bool:
    """Return True if `stored`, in a column, is the value that was given for it. Missing keys are null."""
    if hasattr(given, "tolist"):  # of NumPy
        given = given.tolist()
    if isinstance(given, Mapping):
        return isinstance(stored, dict) and all(_same(stored.get(key), value) for key, value in given.items())
    if isinstance(given, list | tuple):
        return isinstance(stored, list) and len(stored) == len(given) and all(map(_same, stored, given))
    return stored is given or bool(stored == given) or bool(stored != stored and given != given)


def _as_json(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=as_data_url)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"a value of '{name}' in rows does not become JSON text: {error}") from error


def _write(tables: Iterator[pa.Table], path: Path, aside: Path) -> None:
    """Write `tables` one after the other; where one has other columns than those before it, write these again under
    the columns of all. `aside`: the place of these meanwhile."""
    schema, writer = pa.schema([]), None
    try:
        for table in tables:
            _check_extensions(table)
            wider = _united(schema, table.schema)
            if writer is None or wider != schema:
                if writer is not None:
                    writer.close()
                    path.replace(aside)
                writer = pq.ParquetWriter(path, pa.schema([(field.name, without_null(field.type)) for field in wider]))
                for batch in pq.ParquetFile(aside).iter_batches(BATCH_ROWS) if aside.exists() else ():
                    writer.write_table(_cast(pa.Table.from_batches([batch]), writer.schema), BATCH_ROWS)
                schema = wider
                aside.unlink(missing_ok=True)
            writer.write_table(_cast(table, writer.schema), BATCH_ROWS)
    finally:
        if writer is not None:
            writer.close()
        aside.unlink(missing_ok=True)
    if writer is None:
        pq.write_table(pa.table({}), path)  # `data.empty` says what an input without rows is


def _check_extensions(table: pa.Table) -> None:
    """Raise ConfigError for a column of an extension type whose values files would have otherwise: a UUID as bytes."""
    for name, column in zip(table.schema.names, table.columns, strict=True):
        kind = column.type
        if not isinstance(kind, pa.BaseExtensionType):
            continue
        some = column.drop_null().slice(0, 1)
        is_pandas = kind.extension_name.startswith("pandas.")  # it gives a period as the number that is stored
        if is_pandas or some.to_pylist() != some.cast(kind.storage_type).to_pylist():
            raise ConfigError(
                f"rows: column '{name}' has type {kind}, which files have as {kind.storage_type}; make texts of it"
            )


def _united(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    try:
        return pa.unify_schemas([schema.remove_metadata(), other.remove_metadata()], promote_options="permissive")
    except pa.ArrowException as error:
        raise ConfigError(f"rows do not become columns: {error}; {ONE_TYPE}") from error


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return `table` under the columns of `schema`; raises ConfigError if a value would become another one."""
    columns = []
    for field in schema:
        source = table[field.name] if field.name in table.schema.names else pa.nulls(table.num_rows, field.type)
        try:
            column = source.cast(field.type)
        except pa.ArrowException as error:
            raise ConfigError(f"column '{field.name}' of rows is {source.type}, then {field.type}: {error}") from error
        if column.type != source.type and not all(map(_same, column.to_pylist(), source.to_pylist())):
            raise ConfigError(f"column '{field.name}' of rows is {source.type} and {field.type}; {ONE_TYPE}")
        columns.append(column)
    return pa.table(columns, schema=schema)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
