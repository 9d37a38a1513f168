"""Column types of JSON values. Strings stay strings, also those of which pyarrow.json would make dates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from operators.sources.schemas import merge_types

INT64 = range(-(1 << 63), 1 << 63)


def infer_schema(rows: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """Columns in the order in which `rows` first have them, `null` where all values are.

    Where two rows do not go together (a number here, a string there) the first one's type stays; an integer that does
    not fit int64 counts as a double.
    """
    kinds: dict[str, pa.DataType] = {}
    for row in rows:
        for name, value in row.items():
            known = kinds.get(name)
            if known is None or not _surely(known, value):
                kinds[name] = _merge(pa.null() if known is None else known, type_of(value))
    return pa.schema(list(kinds.items()))


def type_of(value: object) -> pa.DataType:
    """The type that holds the JSON value."""
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if value in INT64 else pa.float64()
    if isinstance(value, str | float):
        return pa.string() if isinstance(value, str) else pa.float64()
    if isinstance(value, list):
        inner = pa.null()
        for item in value:
            if not _surely(inner, item):
                inner = _merge(inner, type_of(item))
        return pa.list_(inner)
    if isinstance(value, dict):
        return pa.struct([pa.field(k, type_of(v)) for k, v in value.items()])
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def depth(value: Any) -> int:
    """How many JSON values lie in each other: 1 for a number, 2 for a list of numbers."""
    levels, inside = 0, [value]
    while inside:
        levels += 1
        lists = (v.values() if isinstance(v, dict) else v for v in inside if isinstance(v, dict | list))
        inside = [item for items in lists for item in items]
    return levels


def _surely(known: pa.DataType, value: object) -> bool:
    # Saves most of the merging: strings are what most columns hold.
    return value is None or (isinstance(value, str) and known == pa.string())


def _merge(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    merged = merge_types(known, found, json=True)
    return known if merged is None else merged
