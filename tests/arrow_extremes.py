"""A column of each Arrow type at its extremes: the least value, the greatest, null, and an ordinary one."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa

from operators.rows.arrow_types import plain_type

LEAST, GREATEST = -(1 << 63), (1 << 63) - 1
DAY_S = 86_400
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
ZONES = ("UTC", "Asia/Tokyo", "+05:30", "-00:30", "UTC+01:00", "GMT+8", "PST", "Z", "no/where")
LATE_S = 253_402_300_799
"""9999-12-31 23:59:59, the last second of Python's."""
EARLY_S = -62_135_596_801
"""The second before the year 1."""


def _of(kind: pa.DataType, least: int, greatest: int, usual: int = 0) -> pa.Array:
    held = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array([least, greatest, None, usual], held).view(kind)


def columns() -> dict[str, pa.Array]:
    """Return the columns by name, of four rows each."""
    found: dict[str, pa.Array] = {}
    for unit, a_second in UNITS.items():
        for zone in (None, *(ZONES if unit == "us" else ("Asia/Tokyo", "+05:30", "PST"))):
            kind = pa.timestamp(unit, zone)
            found[str(kind)] = _of(kind, LEAST, GREATEST)
            if unit != "ns":
                found[f"{kind} near"] = _of(kind, EARLY_S * a_second, LATE_S * a_second)
                found[f"{kind} after"] = _of(kind, EARLY_S * a_second - 1, (LATE_S + 1) * a_second)
        found[f"duration {unit}"] = _of(pa.duration(unit), LEAST, 1 << 62)
    found["date32"] = _of(pa.date32(), -(1 << 31), (1 << 31) - 1)
    found["date32 near"] = _of(pa.date32(), EARLY_S // DAY_S, LATE_S // DAY_S + 1)
    found["date64"] = _of(pa.date64(), EARLY_S // DAY_S * DAY_S * 1000, (LATE_S + 1) * 1000)
    for kind, unit in ((pa.time32, "s"), (pa.time32, "ms"), (pa.time64, "us"), (pa.time64, "ns")):
        found[f"time {unit}"] = _of(kind(unit), 0, DAY_S * UNITS[unit] - 1, 1)
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64()):
        half = 1 << (kind.bit_width - 1)
        found[str(kind)] = pa.array([-half, half - 1, None, 1], kind)
    for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        found[str(kind)] = pa.array([0, (1 << kind.bit_width) - 1, None, 1], kind)
    for kind, digits in ((pa.decimal32, 9), (pa.decimal64, 18), (pa.decimal128, 38), (pa.decimal256, 76)):
        found[kind.__name__] = pa.array(
            [Decimal("-" + "9" * digits), Decimal("9" * digits), None, Decimal(1)], kind(digits, 0)
        )
    found["decimal128 of thousands"] = pa.array(
        [Decimal("-9e5"), Decimal("9e5"), None, Decimal(0)], pa.decimal128(5, -2)
    )
    for kind in (np.float16, np.float32, np.float64):
        values = pa.array(np.array([-np.inf, np.finfo(kind).max, 0, np.nan], kind))
        found[str(values.type)] = values.take(pa.array([0, 1, None, 3]))
    found["bool"] = pa.array([False, True, None, True])
    found["null"] = pa.nulls(4)
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)):
        found[str(kind)] = pa.array([b"\x00\x00", b"\xff\xff", None, b"ab"], kind)
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        found[str(kind)] = pa.array(["", "\U0010ffff\0", None, "ab"], kind)
    times = found["timestamp[us]"]
    for make in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view):
        found[f"{make.__name__} of texts"] = pa.array([[], ["a", None], None, ["b"]], make(pa.string()))
    found["list of times"] = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), times)
    found["pairs"] = pa.array([[1, 2], [3, None], None, [5, 6]], pa.list_(pa.int32(), 2))
    found["map"] = pa.array([[], [("a", None), ("b", 2)], None, [("a", 1)]], pa.map_(pa.string(), pa.int64()))
    found["map of times"] = pa.MapArray.from_arrays([0, 1, 2, 3, 4], pa.array(list("abcd")), times)
    found["struct"] = pa.StructArray.from_arrays(
        [times, pa.array([1, 2, 3, 4])], ["t", "n"], mask=pa.array([False, False, True, False])
    )
    found["struct of twins"] = pa.StructArray.from_arrays([pa.array([1, 2, 3, 4])] * 2, ["n", "n"])
    found["struct of nothing"] = pa.array([{}, {}, None, {}], pa.struct([]))
    which, values = pa.array([0, 1, 0, 1], pa.int8()), [pa.array([1, 2, None, 4]), pa.array(["a", "b", "c", "d"])]
    found["dense union"] = pa.UnionArray.from_dense(which, pa.array([0, 1, 2, 3], pa.int32()), values)
    found["sparse union"] = pa.UnionArray.from_sparse(which, values)
    found["run ends"] = pa.RunEndEncodedArray.from_arrays([1, 2, 3, 4], times)
    found["dictionary"] = pa.array(["a", "b", None, "a"]).dictionary_encode()
    found["dictionary of times"] = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.int8()), times)
    ends = (1 << 31) - 1
    found["interval"] = pa.array(
        [(-ends - 1, -ends - 1, LEAST), (ends, ends, GREATEST), None, (1, 2, 3)], pa.month_day_nano_interval()
    )
    return found


def taken() -> dict[str, pa.Array]:
    """Return the columns as they come out of a reader: without views, dictionaries and run ends."""
    plain = {name: plain_type(column.type) for name, column in columns().items()}
    return {
        name: column if plain[name] == column.type else column.cast(plain[name])
        for name, column in columns().items()
        if not pa.types.is_run_end_encoded(column.type)
    }
