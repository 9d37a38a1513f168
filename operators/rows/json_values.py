"""JSON values as columns: types from a JSON schema or from a job, and the conversion of a value to its type."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from operators.rows.arrow_types import JSON_TEXT, is_exact, merge_types, parse_type, type_of
from pipeline.api.errors import ConfigError

JSON = "json"
_SCALARS: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_MAX_REFERENCES = 100
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_LIMITS: Mapping[pa.DataType, tuple[float, float]] = {
    pa.int32(): (-(1 << 31), (1 << 31) - 1),
    pa.int64(): (-(1 << 63), (1 << 63) - 1),
    pa.uint64(): (0, (1 << 64) - 1),
    pa.float32(): (-_LARGEST_FLOAT, _LARGEST_FLOAT),
    pa.float64(): (-sys.float_info.max, sys.float_info.max),
}
_NOUNS = {type(None): "null", bool: "true or false", str: "a text", list: "a list", dict: "an object"}


class Misfit(ValueError):
    """A value does not fit its column; the message gives its place as a JSON path."""


@dataclass(frozen=True)
class JsonField:
    """A key of an object, and the column that it becomes."""

    name: str
    type: pa.DataType
    optional: bool = False
    """The key may be missing or null, which gives null."""
    as_text: bool = False
    """Any value is kept as the text of its JSON."""

    def value(self, values: Mapping[str, Any]) -> Any:
        """Return the column's value for the object `values`; raise Misfit if it is missing, or of another type."""
        path = f"$.{self.name}"
        if values.get(self.name) is None:
            if self.optional:
                return None
            raise Misfit(f"{path} is {'null' if self.name in values else 'missing'}")
        value = values[self.name]
        return fitted(_written(value, path) if self.as_text else value, self.type, path)


def declared_fields(fields: Mapping[str, str], optional: Sequence[str]) -> list[JsonField]:
    """Parse fields that users write, name to type; raise ConfigError for a misspelt type or an unknown `optional`."""
    if unknown := [name for name in optional if name not in fields]:
        raise ConfigError(f"optional names '{unknown[0]}', which is none of the fields {', '.join(fields)}")
    return [JsonField(n, parse_type(t, f"fields.{n}"), n in optional, t.strip() == JSON) for n, t in fields.items()]


def schema_fields(schema: Any) -> list[JsonField]:
    """Return the properties of a JSON schema as fields. Required keys are left to the schema's validation. Raise
    ConfigError with the place if it is no object with properties, or the type of one does not follow from it."""
    try:
        kind = _type(schema, schema, "#")
    except RecursionError as error:
        raise ConfigError("schema: a type in it holds itself, and no column can; give fields") from error
    if not pa.types.is_struct(kind):
        raise ConfigError("schema: its type is not object with properties, so there are no columns; give fields")
    return [JsonField(f.name, f.type, optional=True) for f in kind]


def _type(schema: Any, root: Any, place: str) -> pa.DataType:
    """Return the Arrow type of all values that are valid under `schema`, which is at `place` in `root`."""
    resolved = _resolved(schema, root)
    named = resolved.get("type")
    kinds = [k for k in (named if isinstance(named, list) else [named]) if k != "null"]
    if kinds == ["object"] and resolved.get("properties"):
        inner = resolved["properties"].items()
        return pa.struct([pa.field(n, _type(s, root, f"{place}/properties/{n}")) for n, s in inner])
    if kinds == ["array"] and "items" in resolved:
        return pa.list_(_type(resolved["items"], root, f"{place}/items"))
    if sorted(map(str, kinds)) == ["integer", "number"]:
        return pa.float64()
    if len(kinds) == 1 and kinds[0] in _SCALARS:
        return _SCALARS[str(kinds[0])]
    options = _of_options(resolved, root, place) if named is None else pa.null()
    if pa.types.is_null(options):
        raise ConfigError(
            f"schema, at {place}: no single type follows from {str(schema)[:100]}; give the columns with fields as"
            f" well, for example fields: {{name: string, rest: {JSON}}}"
        )
    return options


def _of_options(schema: Mapping[str, Any], root: Any, place: str) -> pa.DataType:
    """Return the common type of all values of an enum, or of all options of an anyOf; null if they differ."""
    values = [*schema.get("enum", []), *([schema["const"]] if "const" in schema else [])]
    kinds = [type_of(value) for value in values]
    for key in ("anyOf", "oneOf"):
        options = [s for s in schema.get(key, []) if s != {"type": "null"}]
        kinds += [_type(s, root, f"{place}/{key}/{i}") for i, s in enumerate(options)]
    merged = pa.null()
    for kind in kinds:
        merged = merge_types(merged, kind, json=True)
        if merged in (None, JSON_TEXT):
            return pa.null()
    return merged


def _resolved(schema: Any, root: Any) -> Mapping[str, Any]:
    """Follow the $ref of `schema` in `root`; return an empty schema if it cannot be resolved."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            break
        if "$ref" not in schema:
            return schema
        start, *steps = str(schema["$ref"]).split("/")
        schema = root if start == "#" else None
        for step in steps:
            schema = schema.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(schema, Mapping) else None
    return {}


def fitted(value: Any, kind: pa.DataType, path: str) -> Any:
    """Convert `value` for a column of type `kind`; raise Misfit if it is of another type, or out of its range. Null and
    missing keys are null inside lists and objects."""
    if value is None or (pa.types.is_boolean(kind) and isinstance(value, bool)):
        return value
    if pa.types.is_list(kind) and isinstance(value, list):
        return [fitted(v, kind.value_type, f"{path}[{i}]") for i, v in enumerate(value)]
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        return {f.name: fitted(value.get(f.name), f.type, f"{path}.{f.name}") for f in kind}
    if pa.types.is_string(kind) and isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Misfit(f"{path} has half of a surrogate pair, which is no character") from error
        return value
    whole = pa.types.is_integer(kind)
    if kind not in _LIMITS or type(value) not in (int, float) or (whole and value != value // 1):
        raise Misfit(f"{path} is {noun(value)}, not {kind}")
    least, most = _LIMITS[kind]
    if not least <= value <= most or (not whole and isinstance(value, int) and not is_exact(value)):
        raise Misfit(f"{path} is beyond what {kind} holds")
    return int(value) if whole else float(value)


def _written(value: Any, path: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:  # 1e999 is read as infinity
        raise Misfit(f"{path} has a number beyond what a double holds") from error
    except RecursionError as error:
        raise Misfit(f"{path} is nested too deeply") from error


def noun(value: object) -> str:
    """Return the kind of a JSON value for messages: an object, a number ..."""
    return _NOUNS.get(type(value), "a number")


def no_lost_number(text: str) -> float:
    """Return a number of JSON (`parse_float`); raise ValueError for one so near to 0 that it would be 0."""
    value = float(text)
    if value == 0 and re.match("[^eE]*[1-9]", text):
        raise ValueError(f"{text} is too near to 0 for a double")
    return value


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of the pairs of a JSON object (`object_pairs_hook`); raise KeyError with a key that comes twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise KeyError(next(name for name in names if names.count(name) > 1))
    return values
