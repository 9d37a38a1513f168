"""Times that other libraries cannot hold: Arrow's go further than those of polars and of Parquet."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.api.records import holds_times

Times = Callable[[pa.DataType], range]
"""Gives the numbers, in the unit of a type of times, that can be held."""
_INT64 = (1 << 63) - 1
_ALL = range(-_INT64 - 1, _INT64 + 1)
_POLARS_DAYS = 95_000_000
"""Some 260,000 years, in which polars can write a date."""
_TEXT_DAYS = range(-719_162, 2_932_897)
"""The days of the years 1 to 9999, whose dates have texts that are read again."""
_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def times_of_polars(kind: pa.DataType) -> range:
    """Return the numbers of a type of times with which polars can write it."""
    if pa.types.is_duration(kind):
        return _to(_INT64 // 1000) if kind.unit == "s" else _to(_INT64)  # it has no seconds, only milliseconds
    if pa.types.is_date32(kind):
        return _to(_POLARS_DAYS)
    unit = "ms" if pa.types.is_date64(kind) else kind.unit
    return _ALL if unit == "ns" or pa.types.is_time(kind) else _to(_POLARS_DAYS * _A_DAY[unit])


def times_of_parquet(kind: pa.DataType) -> range:
    """Return the numbers of a type of times that Parquet can hold."""
    return _to(_INT64 // 1000) if pa.types.is_timestamp(kind) and kind.unit == "s" else _ALL


def times_of_texts(kind: pa.DataType) -> range:
    """Return the numbers of a type of times that a text can hold: the years 1 to 9999, in every zone."""
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        return _ALL
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return _to(_INT64 // 10**9 * 10**9)  # whole seconds are made first
    unit = 1 if pa.types.is_date32(kind) else _A_DAY["ms" if pa.types.is_date64(kind) else kind.unit]
    spare = 1 if pa.types.is_timestamp(kind) and kind.tz else 0
    return range((_TEXT_DAYS.start + spare) * unit, (_TEXT_DAYS.stop - spare) * unit)


def _to(most: int) -> range:
    return range(-most, most + 1)


def rows_beyond(column: pa.Array, times: Times) -> list[int]:
    """Return the indices of the rows that have a time outside of `times`, also inside of lists and structs."""
    if not holds_times(column.type) or not _beyond(column, times):
        return []
    return [i for i in range(len(column)) if _beyond(column.slice(i, 1), times)]


def _beyond(column: pa.Array, times: Times) -> bool:
    kind = column.type
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        held = pc.min_max(column.view(pa.int32() if kind.bit_width == 32 else pa.int64())).as_py()
        return held["min"] is not None and not (held["min"] in times(kind) and held["max"] in times(kind))
    if pa.types.is_struct(kind):
        return any(_beyond(inner, times) for inner in column.flatten())
    if pa.types.is_map(kind):
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        return any(_beyond(inner.slice(first, last - first), times) for inner in (column.keys, column.items))
    return hasattr(column, "flatten") and _beyond(column.flatten(), times)
