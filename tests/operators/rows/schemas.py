"""Schemas for tests, and a validator for the keywords that these use."""

from __future__ import annotations

import re
from typing import Any

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}


def valid(schema: dict[str, Any], value: Any) -> bool:
    """Whether `value` is what `schema` asks for. Properties that are not named are taken for forbidden."""
    if "anyOf" in schema:
        return any(valid(option, value) for option in schema["anyOf"])
    if "enum" in schema:
        return any(value == option and type(value) is type(option) for option in schema["enum"])
    kind = schema["type"]
    if not _is_of(kind, value):
        return False
    if kind == "object":
        properties = schema["properties"]
        named = all(name in properties and valid(properties[name], inner) for name, inner in value.items())
        return named and set(schema["required"]) <= value.keys()
    if kind == "array":
        return len(value) <= schema["maxItems"] and all(valid(schema["items"], inner) for inner in value)
    if kind == "string":
        fits = re.search(schema.get("pattern", ""), value) is not None
        return fits and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        return bool(low <= value <= high)
    return True


def _is_of(kind: str, value: object) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
