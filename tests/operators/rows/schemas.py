"""A schema for tests, and a validator."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def valid(schema: dict[str, Any], value: Any) -> bool:
    """True if `value` is valid under `schema`."""
    return Draft202012Validator(schema).is_valid(value)
