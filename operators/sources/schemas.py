"""Column types: those that users write (`list<string>`), those that files hold, and one schema for several files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa

from operators.sources.reader import Reader
from pipeline.errors import ConfigError, SchemaError
from pipeline.records import LINEAGE, ROW

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
"""Of the types of a column."""
SPELLING = f"{', '.join(SCALARS)}, list<type> or struct<name: type, ...>"


def parse_schema(types: Mapping[str, str]) -> pa.Schema:
    """The schema that `data.schema` spells.

    Raises:
        ConfigError: a type is misspelt; names the column.
    """
    fields = []
    for name, text in types.items():
        try:
            fields.append(pa.field(name, parse_type(text)))
        except ValueError as error:
            raise ConfigError(f"data.schema.{name}={text!r} is not a type: {error}; write {SPELLING}") from error
    return pa.schema(fields)


def parse_type(text: str) -> pa.DataType:
    """The type that `text` spells, for example list<struct<role: string, content: string>>.

    Raises:
        ValueError: it spells none.
    """
    if text.count("<") > MAX_NESTING:
        raise ValueError(f"it is nested more than {MAX_NESTING} deep")
    tokens = re.findall(r"[<>:,]|[^<>:,\s]+", text)
    parsed = _take_type(tokens)
    if tokens:
        raise ValueError(f"'{tokens[0]}' after its end")
    return parsed


def _take_type(tokens: list[str]) -> pa.DataType:
    name = _take(tokens)
    if name in SCALARS:
        return SCALARS[name]
    if name not in ("list", "struct"):
        raise ValueError(f"unknown type '{name}'")
    _expect(tokens, "<")
    if name == "list":
        inner = _take_type(tokens)
    fields = [] if name == "list" else _take_fields(tokens)
    _expect(tokens, ">")
    return pa.list_(inner) if name == "list" else pa.struct(fields)


def _take_fields(tokens: list[str]) -> list[pa.Field]:
    fields: list[pa.Field] = []
    while not fields or tokens[:1] == [","]:
        if fields:
            _expect(tokens, ",")
        name = _take(tokens)
        _expect(tokens, ":")
        fields.append(pa.field(name, _take_type(tokens)))
    return fields


def _take(tokens: list[str]) -> str:
    if not tokens:
        raise ValueError("it ends too early")
    return tokens.pop(0)


def _expect(tokens: list[str], wanted: str) -> None:
    found = _take(tokens)
    if found != wanted:
        raise ValueError(f"'{wanted}' expected, '{found}' found")


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """`schema` with plain types, all nullable, without metadata."""
    return pa.schema([pa.field(f.name, plain_type(f.type)) for f in schema])


def plain_type(found: pa.DataType) -> pa.DataType:
    """`found` without large offsets, views, dictionaries and extensions: later operators meet one string type."""
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
    if pa.types.is_struct(found):
        return pa.struct([pa.field(f.name, plain_type(f.type)) for f in found])
    return found


def merge_types(a: pa.DataType, b: pa.DataType, *, json: bool) -> pa.DataType | None:
    """The type that holds values of both, or None. A null type gives way, also inside; the rest must be equal.

    `json`: int64 gives way to double, and a struct may lack fields that the other has.
    """
    if pa.types.is_null(a) or a == b:
        return b
    if pa.types.is_null(b):
        return a
    if json and {a, b} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(a) and pa.types.is_list(b):
        inner = merge_types(a.value_type, b.value_type, json=json)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        return _merge_structs(a, b, json)
    return None


def _merge_structs(a: pa.StructType, b: pa.StructType, json: bool) -> pa.DataType | None:
    merged = {f.name: f.type for f in a}
    if not json and merged.keys() != {f.name for f in b}:
        return None
    for field in b:
        kind = merge_types(merged.get(field.name, pa.null()), field.type, json=json)
        if kind is None:
            return None
        merged[field.name] = kind
    return pa.struct(list(merged.items()))


def common_schema(readers: Sequence[Reader], schemas: Sequence[pa.Schema], rename: Mapping[str, str]) -> pa.Schema:
    """One schema for all files; a column without any value is a string column.

    `rename`: how columns will be called later. Here they have the names of the files.

    Raises:
        SchemaError: a file differs; names the file and the column.
        ConfigError: a column has a name that the pipeline needs for itself, two columns have one name, or `rename`
            names one that is not there.
    """
    merged: dict[str, pa.DataType] = {}
    first = readers[0].file if readers else None
    for reader, schema in zip(readers, schemas, strict=True):
        check_names(schema, str(reader.file), rename)
        found = {f.name: f.type for f in schema}
        if merged and not reader.optional_columns and (odd := found.keys() ^ merged.keys()):
            has, lacks = (reader.file, first) if odd & found.keys() else (first, reader.file)
            raise SchemaError(f"column '{min(odd)}' is in {has} but not in {lacks}; all files need the same columns")
        for name, kind in found.items():
            both = merge_types(merged.get(name, pa.null()), kind, json=reader.optional_columns)
            if both is None:
                raise SchemaError(
                    f"column '{name}' is {kind} in {reader.file} but {merged[name]} in the files before it;"
                    " all files need the same types"
                )
            merged[name] = both
    if unknown := sorted(rename.keys() - merged.keys()):
        raise ConfigError(f"data.rename names '{unknown[0]}'; the columns are {', '.join(merged) or 'none'}")
    typed = ((name, _without_null(kind)) for name, kind in merged.items())
    return pa.schema([pa.field(name, kind) for name, kind in typed if kind is not None])


def check_names(schema: pa.Schema, where: str, rename: Mapping[str, str]) -> None:
    """Refuse column names that are taken or doubled, once they are renamed.

    Raises:
        ConfigError: names the column and the remedy.
    """
    names = [rename.get(name, name) for name in schema.names]
    for old, name in zip(schema.names, names, strict=True):
        if name in (ROW.name, LINEAGE.name):
            raise ConfigError(
                f"{where} has a column '{name}', a name that the pipeline needs for itself; give it another one:"
                f" 'data.rename={{{old}: source_{name}}}'"
            )
        if names.count(name) > 1:
            raise ConfigError(f"{where} has two columns '{name}'; rename one, in the file or with data.rename=")


def _without_null(kind: pa.DataType) -> pa.DataType | None:
    """`kind` with string for null; None for a struct without fields, which Parquet cannot hold."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        inner = _without_null(kind.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(kind):
        fields = [(f.name, t) for f in kind if (t := _without_null(f.type)) is not None]
        return pa.struct(fields) if fields else None
    return kind


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `batch` under `schema`, by name. Types that are equal are not copied."""
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.record_batch(columns, schema=schema)
