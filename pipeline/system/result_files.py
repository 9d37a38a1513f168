"""Read result files, in every format that sinks write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
from polars.io.plugins import register_io_source

from pipeline.api.records import python_rows, python_values, record_json
from pipeline.system.result_csv import CsvResults, is_of_json, type_of

Schema = Mapping[str, str]
"""Arrow's names of the types of columns, as manifest.json has them."""
NO_TYPES: Schema = {}
_OF_JSON = (pl.String, pl.Boolean, pl.Int32, pl.Int64, pl.UInt32, pl.UInt64, pl.Float32, pl.Float64)
"""Types that polars can be told to read in JSON lines; others make it abort."""
_OTHERS = (
    pa.types.is_decimal256,
    pa.types.is_interval,
    pa.types.is_large_list_view,
    pa.types.is_list_view,
    pa.types.is_run_end_encoded,
    pa.types.is_union,
)
"""Types that polars does not support."""


def scan(files: list[Path], schema: Schema = NO_TYPES) -> pl.LazyFrame | None:
    """Scan `files`, all of one format; None if there are none or the format is unknown. A column of a type that polars
    does not know is one of texts. `schema`: of the files; only formats without types need it."""
    formats = {Path(path.name.removesuffix(".gz").removesuffix(".zst")).suffix for path in files}
    suffix = formats.pop() if len(formats) == 1 else ""
    if suffix in (".parquet", ".arrow"):
        with suppress(pa.ArrowException, OSError):  # polars says what is wrong with a file
            dataset = ds.dataset(files, format=suffix[1:])
            if not all(known_to_polars(field.type) for field in dataset.schema):
                return _with_texts(dataset)
    reader = SCANS.get(suffix)
    return None if reader is None else reader(files, schema)


def newest(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return the rows of a run with `append_changed=again`, without those that others supersede."""
    superseded = rows.select(pl.col("supersedes").alias("row")).drop_nulls()
    return rows.join(superseded, on="row", how="anti", maintain_order="left")


def scan_folder(folder: Path, schema: Schema = NO_TYPES) -> pl.LazyFrame:
    """Return the rows of all files of one sink, in the order of the files, without empty files (JSON lines of no rows).
    `schema`: as for `scan`. Raises FileNotFoundError if there is no file in `folder`."""
    files = sorted(folder.glob("part-*"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no part-* file")
    rows = scan([file for file in files if not _is_empty(file)], schema)
    return pl.LazyFrame() if rows is None else rows


def _is_empty(file: Path) -> bool:
    with pa.input_stream(str(file), compression="detect") as stream:
        return not stream.read(1)


def shown_rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of `frame` as `python_rows`: polars panics at times that Python cannot hold."""
    wide = pl.col(pl.Int128, pl.UInt128).cast(pl.String)  # whole numbers of JSON lines, which Arrow has not
    return [row for batch in frame.with_columns(wide).to_arrow().to_batches() for row in python_rows(batch)]


def names_of(schema: pa.Schema) -> Schema:
    """Return Arrow's names of the types of columns."""
    return {field.name: str(field.type) for field in schema}


def _frames(
    schema: pa.Schema, batches: Callable[[list[str] | None, int | None], Iterator[pa.RecordBatch]]
) -> pl.LazyFrame:
    """Return the rows that `batches` yields: of some columns, and at least as many as a number, where they are
    given."""

    def frames(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, batch_rows: int | None
    ) -> Iterator[pl.DataFrame]:
        for batch in batches(columns, rows):
            if rows is not None:
                batch = batch.slice(0, rows) if batch.num_rows > rows else batch
                rows -= batch.num_rows
            frame = _frame(pa.Table.from_batches([batch]))
            yield frame if predicate is None else frame.filter(predicate)
            if rows == 0:
                return

    return register_io_source(frames, schema=_frame(schema.empty_table()).schema)


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.DataFrame(table)
    frame.columns = table.schema.names  # polars gives a column without a name one
    return frame


def _with_texts(dataset: ds.Dataset) -> pl.LazyFrame:
    def batches(columns: list[str] | None, rows: int | None) -> Iterator[pa.RecordBatch]:
        data = dataset.to_batches(columns=columns) if rows is None else dataset.head(rows, columns=columns).to_batches()
        return map(_known, data)

    schema = pa.schema(f if known_to_polars(f.type) else pa.field(f.name, pa.string()) for f in dataset.schema)
    return _frames(schema, batches)


def _known(data: pa.RecordBatch) -> pa.RecordBatch:
    columns = {
        name: column if known_to_polars(column.type) else pa.array(map(_text, python_values(column)), pa.string())
        for name, column in zip(data.schema.names, data.columns, strict=True)
    }
    return pa.record_batch(columns)


def _csv(files: list[Path], schema: Schema) -> pl.LazyFrame:
    results = CsvResults(files, schema)
    return _frames(results.schema, lambda columns, rows: results.batches(columns))


def _inner(kind: pl.DataType) -> pl.DataType:
    return _inner(kind.inner) if isinstance(kind, pl.List) else kind  # type: ignore[arg-type]


def _jsonl(files: list[Path], schema: Schema) -> pl.LazyFrame:
    """Scan JSON lines. What is known of types is said, since polars infers them from the first file alone: of a column
    that is null there, and of a type that cannot be said, those of the first file that tells more."""
    types = {name: type_of(kind) for name, kind in schema.items() if is_of_json(type_of(kind), kind)}
    frame = pl.DataFrame(pa.schema(types.items()).empty_table())
    known = {name: kind for name, kind in frame.schema.items() if _inner(kind) in _OF_JSON}
    known |= {name: pl.Int64() for name, kind in frame.schema.items() if kind.is_integer() and kind not in _OF_JSON}
    unknown = _unknown(files[0]) - known.keys()
    for file in files[1:]:
        if unknown:
            found = pl.scan_ndjson(file, infer_schema_length=None).collect_schema()
            known |= {name: found[name] for name in unknown & found.keys() if "Null" not in str(found[name])}
            unknown -= known.keys()
    return pl.scan_ndjson(files, infer_schema_length=None, schema_overrides=known)


def _unknown(file: Path) -> set[str]:
    """Return the columns of a file of JSON lines that are null, or have nothing but null in their lists."""
    found = pl.scan_ndjson(file, infer_schema_length=None).collect_schema()
    return {name for name, kind in found.items() if "Null" in str(kind)}


SCANS: Mapping[str, Callable[[list[Path], Schema], pl.LazyFrame]] = {
    ".parquet": lambda files, schema: pl.scan_parquet(files),
    ".jsonl": _jsonl,
    ".arrow": lambda files, schema: pl.scan_ipc(files),
    ".csv": _csv,
}
"""Reader by file suffix, which .gz or .zst may follow."""


def _text(value: Any) -> str | None:
    return value if isinstance(value, str | None) else record_json(value) if isinstance(value, dict) else str(value)


def known_to_polars(kind: pa.DataType) -> bool:
    """Return True if polars accepts a column of this type; some other types make it abort the process."""
    if any(is_other(kind) for is_other in _OTHERS) or (pa.types.is_decimal(kind) and kind.scale < 0):
        return False
    if pa.types.is_timestamp(kind):
        return _knows_zone(kind.tz)
    if pa.types.is_dictionary(kind):
        return known_to_polars(kind.value_type)
    inner = [kind.field(i) for i in range(kind.num_fields)]
    return len({f.name for f in inner}) == len(inner) and all(known_to_polars(f.type) for f in inner)


@cache
def _knows_zone(zone: str | None) -> bool:
    try:
        pl.from_arrow(pa.array([], pa.timestamp("us", zone)))
    except pl.exceptions.PolarsError:
        return False
    return True
