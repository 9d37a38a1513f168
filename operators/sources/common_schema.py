"""The common schema of several files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from operators.rows.arrow_types import merge_types
from operators.sources.reader import Reader
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import LINEAGE, ROW


def common_schema(readers: Sequence[Reader], schemas: Sequence[pa.Schema], rename: Mapping[str, str]) -> pa.Schema:
    """Return one schema for all files; a column without any value becomes a string column.

    `rename`: how columns will be called later. Here they have the names of the files.

    Raises:
        SchemaError: a file differs; names the file and the column.
        ConfigError: a column has a name that the pipeline needs for itself, two columns have one name, or `rename`
            names one that is not there.
    """
    merged: dict[str, pa.DataType] = {}
    first = readers[0].file if readers else None
    for reader, schema in zip(readers, schemas, strict=True):
        _check_names(schema, str(reader.file), rename)
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


def _check_names(schema: pa.Schema, where: str, rename: Mapping[str, str]) -> None:
    """Raise for column names that are reserved or doubled once they are renamed.

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
    """Return `kind` with string in place of null; None for a struct without fields, which Parquet cannot hold."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        inner = _without_null(kind.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(kind):
        fields = [(f.name, t) for f in kind if (t := _without_null(f.type)) is not None]
        return pa.struct(fields) if fields else None
    return kind
