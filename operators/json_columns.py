"""JSON values as columns: their types, from a JSON schema or as users write them, and whether a value fits its type."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from operators.sources.json_types import type_of
from operators.sources.schemas import SPELLING, merge_types, parse_type
from pipeline.errors import ConfigError

JSON = "json"
_SCALARS: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_MAX_REFERENCES = 100
_MOST = {bits: float(np.finfo(f"float{bits}").max) for bits in (16, 32, 64)}
"""The largest number of a type, by its width."""


class Misfit(ValueError):
    """A value that its column cannot hold; the message has its place as a JSON path."""


@dataclass(frozen=True)
class JsonField:
    """A key of an object, and the column that it becomes.

    Args:
        name: of both.
        type: of the column.
        optional: the key may be missing or null, which gives null.
        as_text: any value, kept as the text of its JSON.
    """

    name: str
    type: pa.DataType
    optional: bool = False
    as_text: bool = False

    def value(self, found: Mapping[str, Any]) -> Any:
        """What the column holds for the object `found`.

        Raises:
            Misfit: it is missing, or of another type.
        """
        path = f"$.{self.name}"
        if found.get(self.name) is None:
            if self.optional:
                return None
            raise Misfit(f"{path} is {'null' if self.name in found else 'missing'}")
        value = found[self.name]
        return fitted(_written(value, path) if self.as_text else value, self.type, path)


def declared_fields(fields: Mapping[str, str], optional: Sequence[str]) -> list[JsonField]:
    """The fields that users write, name to type.

    Raises:
        ConfigError: a type is misspelt, or `optional` names no field.
    """
    if unknown := [name for name in optional if name not in fields]:
        raise ConfigError(f"optional names '{unknown[0]}', which is none of the fields {', '.join(fields)}")
    return [_declared(name, text, name in optional) for name, text in fields.items()]


def _declared(name: str, text: str, optional: bool) -> JsonField:
    if text == JSON:
        return JsonField(name, pa.string(), optional, as_text=True)
    try:
        return JsonField(name, parse_type(text), optional)
    except ValueError as error:
        raise ConfigError(
            f"fields.{name}={text!r} is not a type: {error}; write {SPELLING} or {JSON} (any value, as text)"
        ) from error


def schema_fields(schema: Any) -> list[JsonField]:
    """The properties of a JSON schema as fields. What must be there, the schema itself says.

    Raises:
        ConfigError: it is no object with properties, or the type of one does not follow from it; names the place.
    """
    kind = _type(schema, schema, "#")
    if not pa.types.is_struct(kind):
        raise ConfigError("schema: its type is not object with properties, so there are no columns; give fields")
    return [JsonField(f.name, f.type, optional=True) for f in kind]


def _type(schema: Any, root: Any, place: str) -> pa.DataType:
    schema = _resolved(schema, root, place)
    named = schema.get("type")
    kinds = [k for k in (named if isinstance(named, list) else [named]) if k != "null"]
    if kinds == ["object"] and schema.get("properties"):
        inner = schema["properties"].items()
        return pa.struct([pa.field(n, _type(s, root, f"{place}/properties/{n}")) for n, s in inner])
    if kinds == ["array"] and "items" in schema:
        return pa.list_(_type(schema["items"], root, f"{place}/items"))
    if sorted(map(str, kinds)) == ["integer", "number"]:
        return pa.float64()
    if len(kinds) == 1 and kinds[0] in _SCALARS:
        return _SCALARS[kinds[0]]
    found = _of_options(schema, root, place) if named is None else None
    if found is None:
        raise ConfigError(
            f"schema, at {place}: no single type follows from it; give the columns with fields as well,"
            f" for example fields: {{name: string, rest: {JSON}}}"
        )
    return found


def _of_options(schema: Mapping[str, Any], root: Any, place: str) -> pa.DataType | None:
    """The type of all values of an enum, or of all options of an anyOf; None if they differ."""
    values = [*schema.get("enum", []), *([schema["const"]] if "const" in schema else [])]
    kinds = [type_of(value) for value in values]
    for key in ("anyOf", "oneOf"):
        options = [s for s in schema.get(key, []) if s != {"type": "null"}]
        kinds += [_type(s, root, f"{place}/{key}/{i}") for i, s in enumerate(options)]
    merged: pa.DataType | None = pa.null()
    for kind in kinds:
        merged = None if merged is None else merge_types(merged, kind, json=True)
    return None if merged is None or pa.types.is_null(merged) else merged


def _resolved(schema: Any, root: Any, place: str) -> Mapping[str, Any]:
    """`schema`, or what its $ref inside the same schema leads to."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            raise ConfigError(f"schema, at {place}: no single type follows from {schema!r}; give fields")
        reference = schema.get("$ref")
        if reference is None:
            return schema
        schema = _pointed(reference, root, place)
    raise ConfigError(f"schema, at {place}: its $ref goes round in a circle; give the columns with fields as well")


def _pointed(reference: object, root: Any, place: str) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise ConfigError(f"schema, at {place}: $ref {reference!r} leads out of the schema; write it out in $defs")
    found = root
    for step in reference.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or step not in found:
            raise ConfigError(f"schema, at {place}: there is nothing at $ref {reference!r}")
        found = found[step]
    return found


def fitted(value: Any, kind: pa.DataType, path: str) -> Any:
    """`value` as a column of type `kind` takes it. Null and keys that lack are null inside lists and objects.

    Raises:
        Misfit: it is of another type, or out of its range.
    """
    if value is None:
        return None
    if pa.types.is_list(kind) and isinstance(value, list):
        return [fitted(v, kind.value_type, f"{path}[{i}]") for i, v in enumerate(value)]
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        return {f.name: fitted(value.get(f.name), f.type, f"{path}.{f.name}") for f in kind}
    if pa.types.is_string(kind) and isinstance(value, str):
        return _text(value, path)
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        if pa.types.is_integer(kind) and value == value // 1:
            return _whole(int(value), kind, path)
        if pa.types.is_floating(kind):
            return _real(value, kind, path)
    raise Misfit(f"{path} is {_noun(value)}, not {kind}")


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Misfit(f"{path} has half of a surrogate pair, which is no character") from error
    return value


def _whole(value: int, kind: pa.DataType, path: str) -> int:
    if not -(1 << kind.bit_width - 1) <= value < 1 << kind.bit_width - 1:
        raise Misfit(f"{path} is beyond what {kind} holds")
    return value


def _real(value: float, kind: pa.DataType, path: str) -> float:
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not abs(found) <= _MOST[kind.bit_width]:
        raise Misfit(f"{path} is beyond what {kind} holds")
    return found


def _written(value: Any, path: str) -> str:
    """The JSON text of a value that was read from one."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:  # 1e999 is read as infinity
        raise Misfit(f"{path} has a number beyond what a double holds") from error
    except RecursionError as error:
        raise Misfit(f"{path} is nested too deeply") from error


def _noun(value: object) -> str:
    nouns: Sequence[tuple[type, str]] = (
        (bool, "true or false"),
        (str, "a text"),
        (list, "a list"),
        (dict, "an object"),
    )
    return next((noun for kind, noun in nouns if isinstance(value, kind)), "a number")
