"""Column types: parse those that users write (`list<string>`), infer those of JSON values, and merge those of files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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
UINT64 = range(1 << 64)
_NUMBERS = {pa.int64(), pa.uint64(), pa.float64()}
JSON_TEXT = pa.json_()
"""The type of an inferred column that holds any value but texts and booleans as the text of its JSON, since no other
type holds what was found: an object without keys, whole numbers beyond all types. Results have it as string."""


def parse_schema(types: Mapping[str, str], key: str = "data.schema") -> pa.Schema:
    """Parse the types that the setting `key` gives; raise ConfigError with the column if one is misspelt."""
    return pa.schema([(name, parse_type(text, f"{key}.{name}")) for name, text in types.items()])


def parse_type(text: str, key: str) -> pa.DataType:
    """Parse a type as list<struct<role: string, content: string>>; raise ConfigError with `key` if it is misspelt."""
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

    Every value comes back from its type as it was, but for those that contradict the type of the first (a number and a
    string). Whole numbers are int64, or uint64 where all fit, and with fractions among them double. Strings stay
    strings, also those of which pyarrow.json would make dates.
    """
    columns: dict[str, _Inferred] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, _Inferred()).add(value)
    return pa.schema([(name, inferred.type()) for name, inferred in columns.items()])


def type_of(value: object) -> pa.DataType:
    """Return the Arrow type of a JSON value."""
    inferred = _Inferred()
    inferred.add(value)
    return inferred.type()


class _Inferred:
    """The type of the JSON values at one place of a column. Those of another kind than the first are left out."""

    __slots__ = ("fields", "fractions", "inexact", "items", "kind", "least", "most")

    def __init__(self) -> None:
        self.kind: type | None = None
        self.least = self.most = 0
        self.fractions = self.inexact = False
        self.items: _Inferred | None = None
        self.fields: dict[str, _Inferred] = {}

    def add(self, value: Any) -> None:
        if value is None:
            return
        kind = float if type(value) is int else type(value)
        if self.kind is None:
            self.kind = kind
        if kind is not self.kind:
            return
        if kind is float:
            self._number(value)
        elif kind is list:
            self.items = self.items or _Inferred()
            for item in value:
                self.items.add(item)
        elif kind is dict:
            for name, inner in value.items():
                self.fields.setdefault(name, _Inferred()).add(inner)

    def _number(self, value: float) -> None:
        if isinstance(value, int):
            self.least, self.most = min(self.least, value), max(self.most, value)
            self.inexact = self.inexact or not is_exact(value)
        else:
            self.fractions = True

    def type(self) -> pa.DataType:
        """Return the type that all values come back from."""
        if self.kind is None:
            return pa.null()
        if self.kind in _OF_KIND:
            return _OF_KIND[self.kind]
        if self.kind is float:
            return self._of_numbers()
        if self.kind is list:
            inner = self.items.type() if self.items else pa.null()
            return JSON_TEXT if inner == JSON_TEXT else pa.list_(inner)
        fields = {name: inferred.type() for name, inferred in self.fields.items()}
        return pa.struct(list(fields.items())) if fields and JSON_TEXT not in fields.values() else JSON_TEXT

    def _of_numbers(self) -> pa.DataType:
        if self.fractions:
            return JSON_TEXT if self.inexact else pa.float64()
        if self.least in INT64 and self.most in INT64:
            return pa.int64()
        return pa.uint64() if self.least in UINT64 and self.most in UINT64 else JSON_TEXT


_OF_KIND: Mapping[type, pa.DataType] = {str: pa.string(), bool: pa.bool_()}


def is_whole(text: str) -> bool:
    """Return True if a text is an int64 as Python writes it."""
    try:
        return str(number := int(text)) == text and number in INT64
    except ValueError:
        return False


def is_exact(value: int) -> bool:
    """Return True if a double holds this whole number."""
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


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


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Replace large offsets, views, dictionaries and extensions in `kind`, so that there is one string type."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        inner = plain_type(kind.value_type)
        return kind if inner == kind.value_type else pa.list_(inner, kind.list_size)
    if pa.types.is_map(kind):
        pair = plain_type(kind.key_type), plain_type(kind.item_type)
        return kind if pair == (kind.key_type, kind.item_type) else pa.map_(*pair)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, plain_type(f.type)) for f in kind])
    return kind


_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_DIGITS = {pa.float16(): 11, pa.float32(): 24, pa.float64(): 53}
"""Bits of the whole numbers that a type holds all of."""


def wider_number(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type that holds the numbers of both; double for whole numbers of more digits than it has,
    and fractions. None if there is none (int64 and uint64), or one is no number."""
    whole, fractions = ([kind for kind in (a, b) if is_one(kind)] for is_one in (pa.types.is_integer, _is_fraction))
    if len(whole) + len(fractions) < 2:
        return None
    signed = any(map(pa.types.is_signed_integer, whole))
    bits = max((kind.bit_width - pa.types.is_signed_integer(kind) for kind in whole), default=0)
    if not fractions:
        return next((k for k in (_SIGNED if signed else _UNSIGNED) if k.bit_width - signed >= bits), None)
    width = max(kind.bit_width for kind in fractions)
    return next((k for k, digits in _DIGITS.items() if digits >= bits and k.bit_width >= width), pa.float64())


def _is_fraction(kind: pa.DataType) -> bool:
    return kind in _DIGITS


def merge_types(a: pa.DataType, b: pa.DataType, *, json: bool = False, union: bool = False) -> pa.DataType | None:
    """Return the type that holds the values of both, or None. Null merges with any type, also nested; other types must
    be equal.

    Args:
        json: int64 and double merge to double, a struct may lack fields that the other has, and what has no other
            common type but is no text or boolean is JSON_TEXT.
        union: numbers merge to the wider type, and a struct may lack fields that the other has.
    """
    if pa.types.is_null(b) or a == b:
        return a
    if pa.types.is_null(a):
        return b
    if json and {a, b} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if json and (JSON_TEXT in (a, b) or {a, b} <= _NUMBERS):
        return None if {a, b} & {pa.string(), pa.bool_()} else JSON_TEXT
    if pa.types.is_list(a) and pa.types.is_list(b):
        inner = merge_types(a.value_type, b.value_type, json=json, union=union)
        return inner if inner in (None, JSON_TEXT) else pa.list_(inner)
    if not (pa.types.is_struct(a) and pa.types.is_struct(b)):
        return wider_number(a, b) if union else None
    merged = {f.name: f.type for f in a}
    if not (json or union) and merged.keys() != {f.name for f in b}:
        return None
    for field in b:
        merged[field.name] = merge_types(merged.get(field.name, pa.null()), field.type, json=json, union=union)
    if None in merged.values():
        return None
    return JSON_TEXT if JSON_TEXT in merged.values() else pa.struct(list(merged.items()))
