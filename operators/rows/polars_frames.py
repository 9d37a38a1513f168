"""Makes polars frames of Arrow data: of columns of types that it does not know, too, some of which make it abort the
process, and of rows that come batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
from polars.io.plugins import register_io_source

from pipeline.api.records import python_values, record_json

_OTHERS = (
    pa.types.is_decimal256,
    pa.types.is_interval,
    pa.types.is_large_list_view,
    pa.types.is_list_view,
    pa.types.is_run_end_encoded,
    pa.types.is_union,
)
"""Types that polars does not support."""


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


def scan_typed(kind: str, files: list[Path], reader: Callable[[list[Path]], pl.LazyFrame]) -> pl.LazyFrame:
    """Scan files that have types by `reader`; columns of types that polars does not know are texts. `kind`: their
    format, as pyarrow calls it."""
    with suppress(pa.ArrowException, OSError):  # polars says what is wrong with a file
        dataset = ds.dataset(files, format=kind)
        if not all(known_to_polars(field.type) for field in dataset.schema):
            return _with_texts(dataset)
    return reader(files)


def frames(
    schema: pa.Schema, batches: Callable[[list[str] | None, int | None], Iterator[pa.RecordBatch]]
) -> pl.LazyFrame:
    """Return the rows that `batches` yields: of some columns, and at least as many as a number, where they are
    given."""

    def made(
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

    return register_io_source(made, schema=_frame(schema.empty_table()).schema)


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.DataFrame(table)
    frame.columns = table.schema.names  # polars gives a column without a name one
    return frame


def _with_texts(dataset: ds.Dataset) -> pl.LazyFrame:
    def batches(columns: list[str] | None, rows: int | None) -> Iterator[pa.RecordBatch]:
        data = dataset.to_batches(columns=columns) if rows is None else dataset.head(rows, columns=columns).to_batches()
        return map(_known, data)

    schema = pa.schema(f if known_to_polars(f.type) else pa.field(f.name, pa.string()) for f in dataset.schema)
    return frames(schema, batches)


def _known(data: pa.RecordBatch) -> pa.RecordBatch:
    columns = {
        name: column if known_to_polars(column.type) else pa.array(map(_text, python_values(column)), pa.string())
        for name, column in zip(data.schema.names, data.columns, strict=True)
    }
    return pa.record_batch(columns)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str | None) else record_json(value) if isinstance(value, dict) else str(value)
