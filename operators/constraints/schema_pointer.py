"""Find the place of a fault in a JSON schema: llguidance says what is wrong, not where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_NAMED = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
"""Keywords whose value maps names to schemas. Definitions come first: a fault is where it stands, not where it is
used."""
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_DEFINITIONS = ("$schema", "$defs", "definitions")


def place_of(schema: Any, fault: Callable[[Any], str | None]) -> str:
    """Return a JSON pointer to the smallest part of `schema` that cannot be compiled for the same reason as the whole.

    Args:
        schema: a schema that cannot be compiled.
        fault: returns the reason why a schema cannot be compiled; None if it can.
    """
    reason = fault(schema)
    shared = {key: schema[key] for key in _DEFINITIONS if key in schema} if isinstance(schema, Mapping) else {}
    pointer, part = "#", schema
    while True:
        # A part is compiled beside the definitions of the whole, to which it may refer. A reference to anything else is
        # a fault of its own there, and so leads nowhere.
        broken = (
            (step, child)
            for step, child in _children(part)
            if fault({**shared, **child} if isinstance(child, Mapping) else child) == reason
        )
        found = next(broken, None)
        if found is None:
            return pointer
        pointer, part = pointer + found[0], found[1]


def _children(schema: Any) -> Iterator[tuple[str, Any]]:
    """Iterate the schemas inside a schema, each with its step of the pointer."""
    if not isinstance(schema, Mapping):
        return
    for key in _NAMED:
        named = schema.get(key)
        if isinstance(named, Mapping):
            yield from ((f"/{key}/{_escaped(str(name))}", child) for name, child in named.items())
    for key in _LISTED:
        listed = schema.get(key)
        if isinstance(listed, Sequence) and not isinstance(listed, str):
            yield from ((f"/{key}/{i}", child) for i, child in enumerate(listed))
    yield from ((f"/{key}", schema[key]) for key in _SINGLE if isinstance(schema.get(key), Mapping))


def _escaped(name: str) -> str:
    """RFC 6901, section 3."""
    return name.replace("~", "~0").replace("/", "~1")
