"""Column types: parse those that users write (`list<string>`), infer those of JSON values, and merge those of files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import pyarrow as pa

from pipeline.api.errors import ConfigError

SCALARS: Mapping[str, pa.DataType] = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bool": pa.bool_(),
    "json": pa.string(),
}
MAX_NESTING = 100
"""Deepest nesting of a column's type."""
SPELLING = f"{', '.join(SCALARS)}, list<type> or struct<name: type, ...>"
INT64 = range(-(1 << 63), 1 << 63)


def parse_schema(types: Mapping[str, str]) -> pa.Schema:
    """Parse `data.schema`; raise ConfigError with the column if a type is misspelt."""
    return pa.schema([(name, parse_type(text, f"data.schema.{name}")) for name, text in types.items()])


def parse_type(text: str, key: str) -> pa.DataType:
    """Parse a type, for example list<struct<role: string, content: string>>; raise ConfigError with the `key` of the
    setting if it is misspelt."""
    try:
        if text.count("<") > MAX_NESTING:
            raise ValueError(f"it is nested more than {MAX_NESTING} deep")
        return _parsed(text)
    except ValueError as error:
        raise ConfigError(f"{key}={text!r} is not a type: {error}; write {SPELLING}") from error


def _parsed(text: str) -> pa.DataType:
    text = text.strip()
    if text in SCALARS:
        return SCALARS[text]
    nested = re.fullmatch(r"(list|struct)\s*<(.*)>", text, re.DOTALL)
    if nested is None:
        raise ValueError(f"unknown type '{text}'")
    return pa.list_(_parsed(nested[2])) if nested[1] == "list" else pa.struct(_parsed_fields(nested[2]))


def _parsed_fields(text: str) -> list[tuple[str, pa.DataType]]:
    """Parse the fields of a struct, split at commas outside of nested types."""
    fields, depth = [""], 0
    for character in text:
        depth += (character == "<") - (character == ">")
        if character == "," and depth == 0:
            fields.append("")
        else:
            fields[-1] += character
    named = [re.fullmatch(r"\s*([^<>:,\s]+)\s*:(.*)", field, re.DOTALL) for field in fields]
    if None in named:
        raise ValueError(f"name: type expected, '{fields[named.index(None)].strip()}' found")
    return [(field[1], _parsed(field[2])) for field in named if field is not None]


def infer_schema(rows: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """Infer the columns of JSON objects, in the order in which `rows` first have them; `null` for a column without a
    value.

    If two rows contradict each other (a number and a string), the type of the first stays. An integer that does not fit
    int64 is a double. Strings stay strings, also those of which pyarrow.json would make dates.
    """
    kinds: dict[str, pa.DataType] = {}
    for row in rows:
        for name, value in row.items():
            kinds[name] = _widened(kinds.get(name, pa.null()), value)
    return pa.schema(list(kinds.items()))


def type_of(value: object) -> pa.DataType:
    """Return the Arrow type of a JSON value."""
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int | float):
        return pa.int64() if isinstance(value, int) and value in INT64 else pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, list):
        return pa.list_(reduce(_widened, value, pa.null()))
    if isinstance(value, dict):
        return pa.struct([pa.field(k, type_of(v)) for k, v in value.items()])
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _widened(known: pa.DataType, value: object) -> pa.DataType:
    """Return the type that holds both the values of `known` and `value`; `known` if there is none."""
    if value is None or (isinstance(value, str) and known == pa.string()):  # the usual case, without merging
        return known
    merged = merge_types(known, type_of(value), json=True)
    return known if merged is None else merged


def depth(value: Any) -> int:
    """Return the depth of a JSON value: 1 for a number, 2 for a list of numbers."""
    levels, inside = 0, [value]
    while inside:
        levels += 1
        lists = (v.values() if isinstance(v, dict) else v for v in inside if isinstance(v, dict | list))
        inside = [item for items in lists for item in items]
    return levels


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return `schema` with plain types, all nullable, without metadata."""
    return pa.schema([pa.field(f.name, plain_type(f.type)) for f in schema])


def plain_type(found: pa.DataType) -> pa.DataType:
    """Replace large offsets, views, dictionaries and extensions in `found`, so that there is one string type."""
    if isinstance(found, pa.BaseExtensionType):
        return plain_type(found.storage_type)
    if pa.types.is_dictionary(found):
        return plain_type(found.value_type)
    if pa.types.is_large_string(found) or pa.types.is_string_view(found):
        return pa.string()
    if pa.types.is_large_binary(found) or pa.types.is_binary_view(found):
        return pa.binary()
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        return pa.list_(plain_type(found.value_type))
    if pa.types.is_fixed_size_list(found):
        inner = plain_type(found.value_type)
        return found if inner == found.value_type else pa.list_(inner, found.list_size)
    if pa.types.is_map(found):
        pair = plain_type(found.key_type), plain_type(found.item_type)
        return found if pair == (found.key_type, found.item_type) else pa.map_(*pair)
    if pa.types.is_struct(found):
        return pa.struct([pa.field(f.name, plain_type(f.type)) for f in found])
    return found


def merge_types(a: pa.DataType, b: pa.DataType, *, json: bool) -> pa.DataType | None:
    """Return the type that holds the values of both, or None. Null merges with any type, also nested; other types must
    be equal.

    `json`: int64 and double merge to double, and a struct may lack fields that the other has.
    """
    if pa.types.is_null(b) or a == b:
        return a
    if pa.types.is_null(a):
        return b
    if json and {a, b} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(a) and pa.types.is_list(b):
        inner = merge_types(a.value_type, b.value_type, json=json)
        return None if inner is None else pa.list_(inner)
    if not (pa.types.is_struct(a) and pa.types.is_struct(b)):
        return None
    merged = {f.name: f.type for f in a}
    if not json and merged.keys() != {f.name for f in b}:
        return None
    for field in b:
        merged[field.name] = merge_types(merged.get(field.name, pa.null()), field.type, json=json)
    return None if None in merged.values() else pa.struct(list(merged.items()))
