"""The `schema` of a step: a short form, a JSON schema, or the path of one."""

from __future__ import annotations

import re
from typing import Any

from pipeline.api.errors import ConfigError, did_you_mean

TYPES = {
    **dict.fromkeys(("string", "str", "text"), ("string", "string")),
    **dict.fromkeys(("int", "integer", "int64"), ("integer", "int64")),
    **dict.fromkeys(("float", "number", "double"), ("number", "double")),
    **dict.fromkeys(("bool", "boolean"), ("boolean", "bool")),
}
"""Types of JSON and of Arrow, by the words of the short form."""
_LIST = re.compile(r"list\s*[<\[](.+)[>\]]")
_OF_JSON_SCHEMA = ("properties", "anyOf", "oneOf", "allOf", "$ref", "$schema", "$defs")


def json_schema(given: dict[str, Any] | str) -> tuple[Any, dict[str, Any]]:
    """Return the JSON schema that `given` means, and the arguments of ParseJson that make columns of it.

    Raises:
        ConfigError: a type of the short form is unknown.
    """
    if isinstance(given, str) or given.get("type") == "object" or any(key in given for key in _OF_JSON_SCHEMA):
        return given, {"schema": given}
    forms = {name: _form(name, kind) for name, kind in given.items()}
    schema = {
        "type": "object",
        "properties": {name: form for name, (form, _) in forms.items()},
        "required": list(forms),
        "additionalProperties": False,
    }
    return schema, {"fields": {name: kind for name, (_, kind) in forms.items()}}


def _form(name: str, kind: object) -> tuple[dict[str, Any], str]:
    """Return the JSON schema and the Arrow type of a key of the short form."""
    if isinstance(kind, list) and kind and all(isinstance(text, str) for text in kind):
        return {"enum": kind}, "string"
    if isinstance(kind, str) and (inside := _LIST.fullmatch(kind)):
        form, of = _form(name, inside[1])
        return {"type": "array", "items": form}, f"list<{of}>"
    if not isinstance(kind, str) or kind not in TYPES:
        hint = did_you_mean(str(kind), TYPES)
        known = "string, int, float, bool, list<...>, or a list of the texts that it may be"
        raise ConfigError(f"schema.{name} is {kind!r}, and a type is {known}{hint}")
    of_json, of_arrow = TYPES[kind]
    return {"type": of_json}, of_arrow
