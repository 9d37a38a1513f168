"""Times that other libraries cannot hold: Arrow's go further than those of polars and of Parquet."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.api.records import holds_times

Most = Callable[[pa.DataType], int]
"""Gives the greatest number, in the unit of a type of times, that can be held; the least is as far from 0."""
_INT64 = (1 << 63) - 1
_POLARS_DAYS = 95_000_000
"""Some 260,000 years, in which polars can write a date."""
_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


def most_of_polars(kind: pa.DataType) -> int:
    """Return the greatest number of a type of times with which polars can write it."""
    if pa.types.is_duration(kind):
        return _INT64 // 1000 if kind.unit == "s" else _INT64  # it has no seconds, only milliseconds
    if pa.types.is_date32(kind):
        return _POLARS_DAYS
    unit = "ms" if pa.types.is_date64(kind) else kind.unit
    return _POLARS_DAYS * _A_DAY[unit] if unit in _A_DAY and not pa.types.is_time(kind) else _INT64 + 1


def most_of_parquet(kind: pa.DataType) -> int:
    """Return the greatest number of a type of times that Parquet can hold."""
    return _INT64 // 1000 if pa.types.is_timestamp(kind) and kind.unit == "s" else _INT64 + 1


def rows_beyond(column: pa.Array, most: Most) -> list[int]:
    """Return the indices of the rows that have a time beyond `most`, also inside of lists and structs."""
    if not holds_times(column.type) or not _beyond(column, most):
        return []
    return [i for i in range(len(column)) if _beyond(column.slice(i, 1), most)]


def _beyond(column: pa.Array, most: Most) -> bool:
    kind = column.type
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        held = pc.min_max(column.view(pa.int32() if kind.bit_width == 32 else pa.int64())).as_py()
        return held["min"] is not None and max(-held["min"], held["max"]) > most(kind)
    if pa.types.is_struct(kind):
        return any(_beyond(inner, most) for inner in column.flatten())
    if pa.types.is_map(kind):
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        return any(_beyond(inner.slice(first, last - first), most) for inner in (column.keys, column.items))
    return hasattr(column, "flatten") and _beyond(column.flatten(), most)
