"""JSON schemas of tools as grammars and readers of calls need them: whole, closed, and without choices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.api.errors import ConfigError

Schema = Mapping[str, Any] | bool
Joined = Sequence[Mapping[str, Any]]
"""Schemas without choices and references, all of which hold."""
KINDS = ("null", "boolean", "integer", "number", "string", "array", "object")
MOST_JOINED = 256
"""Alternatives of a schema that are written out; each of several choices in one schema multiplies them."""
_NAMED = ("properties", "patternProperties")
_SINGLE = ("additionalProperties", "items")
_CHOICES = ("anyOf", "oneOf")
_FIXED = ("enum", "const")
_KEPT = {
    *("type", "required", "minProperties", "maxProperties", "minItems", "maxItems", "pattern", "format"),
    *("minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *_FIXED,
}
_REFUSED = {
    *("not", "if", "then", "else", "dependentSchemas", "dependentRequired", "dependencies", "propertyNames"),
    *("contains", "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef"),
    "$recursiveRef",
}
"""Keywords that llguidance has not; it names them."""
_SAYING = {*_NAMED, *_SINGLE, *_CHOICES, *_KEPT, *_REFUSED, "allOf", "prefixItems", "uniqueItems", "$ref"}


def whole(schema: Schema, *, closed: bool) -> Schema:
    """Return a schema that says the same in keywords of constraints alone, with every reference led to its `$defs`.

    Args:
        closed: objects have no properties but those that are described, unless their schema says so: by
            `additionalProperties`, or by a value in `enum` or `const`. What `allOf`, `anyOf`, `oneOf` and `$ref`
            describe of an object counts together, as for JSON Schema's `unevaluatedProperties: false`.

    Raises:
        ConfigError: a reference leads nowhere, or to itself.
    """
    try:
        return _Whole(schema).made(frozenset() if closed else None)
    except RecursionError as error:
        raise ConfigError("it is nested too deeply") from error


Names = frozenset[tuple[str, str]]
"""Of properties, each with `properties` or `patternProperties`."""


class _Whole:
    """Makes one schema whole. `beside`: the names that are described beside it; None: it stays open."""

    def __init__(self, schema: Schema) -> None:
        import jsonschema
        from referencing import Registry
        from referencing.jsonschema import specification_with

        cls = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        registry: Any = Registry()  # empty, so nothing is fetched from the web
        self._root = schema
        self._resource = specification_with(cls.META_SCHEMA["$schema"]).create_resource
        self._resolver = registry.resolver_with_root(self._resource(schema))
        self._defs: dict[str, Schema] = {}
        self._def_names: dict[tuple[int, Names | None], str] = {}
        self._inside: Names | None = None

    def made(self, beside: Names | None) -> Schema:
        self._inside = beside
        schema = self._part(self._root, self._resolver, beside)
        if isinstance(schema, bool) or not self._defs:
            return schema
        return {**schema, "$defs": self._defs}

    def _part(self, schema: Any, resolver: Any, beside: Names | None) -> Schema:
        if not isinstance(schema, Mapping):
            return bool(schema)
        if "$id" in schema and schema is not self._root:
            resolver = resolver.in_subresource(self._resource(schema))
        keywords: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _NAMED:
                keywords[key] = {name: self._part(part, resolver, self._inside) for name, part in value.items()}
            elif key == "prefixItems" or (key == "items" and isinstance(value, list)):
                keywords["prefixItems"] = [self._part(part, resolver, self._inside) for part in value]
            elif key in _SINGLE:
                keywords[key] = self._part(value, resolver, self._inside)
            elif key in _KEPT or key in _REFUSED or (key == "uniqueItems" and value):
                keywords[key] = value
        if isinstance(schema.get("items"), list) and "additionalItems" in schema:  # until draft 2019-09
            keywords["items"] = self._part(schema["additionalItems"], resolver, self._inside)
        for limit, key in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if isinstance(keywords.get(key), bool):  # in draft 4
                keywords |= {key: keywords.pop(limit)} if keywords.pop(key) and limit in keywords else {}
        parts = schema.get("allOf", ())
        if not keywords and not {*_CHOICES} & {*schema}:  # a reference, or `allOf` with one, as pydantic writes it
            if len(parts) == 1 and "$ref" not in schema:
                return self._part(parts[0], resolver, beside)
            if "$ref" in schema and not parts:
                return {"$ref": self._target(schema["$ref"], resolver, beside)}
        choice = next((key for key in _CHOICES if key in schema), None)
        around = self._names({key: value for key, value in schema.items() if key != choice}, resolver, ())
        within = None if beside is None or around is None else beside | around
        if "$ref" in schema:
            keywords["$ref"] = self._target(schema["$ref"], resolver, None)
        if parts:
            keywords["allOf"] = [self._part(part, resolver, None) for part in parts]
        for key in _CHOICES:
            if key in schema:
                keywords[key] = [self._part(part, resolver, within if key == choice else None) for part in schema[key]]
        if choice is None and within is not None and "object" in _types(schema):
            for key, name in sorted(within):
                keywords[key] = {**keywords.get(key, {})}
                keywords[key].setdefault(name, True)
            keywords["additionalProperties"] = False
        return keywords

    def _target(self, reference: str, resolver: Any, beside: Names | None) -> str:
        """Return the reference to a definition of our own for what `reference` leads to."""
        contents, resolver = self._lookup(reference, resolver)
        key = (id(contents), beside)
        if key not in self._def_names:
            self._def_names[key] = name = f"d{len(self._def_names)}"
            self._defs[name] = True
            self._defs[name] = self._part(contents, resolver, beside)
        return f"#/$defs/{self._def_names[key]}"

    def _lookup(self, reference: str, resolver: Any) -> tuple[Any, Any]:
        from referencing.exceptions import Unresolvable

        for _ in range(MOST_JOINED):
            try:
                target = resolver.lookup(reference)
            except Unresolvable as error:
                raise ConfigError(f"$ref {reference!r} leads out of its schema or nowhere") from error
            contents, resolver = target.contents, target.resolver
            if not isinstance(contents, Mapping) or _SAYING & {*contents} != {"$ref"}:
                return contents, resolver
            reference = contents["$ref"]
        raise ConfigError(f"$ref {reference!r} leads to itself")

    def _names(self, schema: Any, resolver: Any, visited: tuple[int, ...]) -> Names | None:
        """Return what a schema describes of the object itself; None if it says which others there may be."""
        if not isinstance(schema, Mapping):
            return frozenset()
        fixed = [*schema.get("enum", ()), schema.get("const")]
        if "additionalProperties" in schema or any(isinstance(value, Mapping) for value in fixed):
            return None
        described = {(key, name) for key in _NAMED for name in schema.get(key, ())}
        inner = [(part, resolver) for key in ("allOf", *_CHOICES) for part in schema.get(key, ())]
        if "$ref" in schema:
            inner.append(self._lookup(schema["$ref"], resolver))
        for part, its in inner:
            if id(part) in visited:
                continue
            names = self._names(part, its, (*visited, id(part)))
            if names is None:
                return None
            described |= names
        return frozenset(described)


def _types(schema: Mapping[str, Any]) -> Sequence[str]:
    kind = schema.get("type", KINDS)
    return [kind] if isinstance(kind, str) else kind


def alternatives(schema: Schema, root: Schema) -> list[Joined]:
    """Return the alternatives of a schema that `whole` made, `root`, or of a part of it: one of them has to hold.

    Raises:
        ConfigError: there are more than MOST_JOINED, or they have no end.
    """
    try:
        return _alternatives(schema, root)
    except RecursionError as error:
        raise ConfigError("it refers to itself without an end") from error


def _alternatives(schema: Schema, root: Schema) -> list[Joined]:
    if isinstance(schema, bool):
        return [()] if schema else []
    groups: list[Sequence[Schema]] = [[part] for part in schema.get("allOf", ())]
    groups += [schema[key] for key in _CHOICES if key in schema]
    if "$ref" in schema:
        assert isinstance(root, Mapping)
        groups.append([root["$defs"][schema["$ref"].removeprefix("#/$defs/")]])
    flat = {key: value for key, value in schema.items() if key not in ("allOf", *_CHOICES, "$ref", "$defs")}
    joined: list[Joined] = [[flat] if flat else []]
    for group in groups:
        several = [one for part in group for one in _alternatives(part, root)]
        joined = [[*one, *other] for one in joined for other in several]
        if len(joined) > MOST_JOINED:
            raise ConfigError(f"it has more than {MOST_JOINED} alternatives")
    return joined


def fixed(joined: Joined) -> list[Any] | None:
    """Return the values that `enum` and `const` leave, which may break other keywords; None without these."""
    lists = [[one["const"]] if "const" in one else one["enum"] for one in joined if {*_FIXED} & {*one}]
    return min(lists, key=len) if lists else None


def kinds(joined: Joined) -> set[str]:
    """Return the types that fit; an integer is no number here."""
    fitting = {*KINDS}
    for one in joined:
        types = {*_types(one)}
        fitting &= types | {"integer"} if "number" in types else types
    values = fixed(joined)
    return fitting if values is None else fitting & {kind_of(value) for value in values}


def kind_of(value: Any) -> str:
    """Return the type of a JSON value."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    return "string" if isinstance(value, str) else "object" if isinstance(value, Mapping) else "array"


def both(parts: Iterable[Schema]) -> Schema:
    """Return the schema of what fits all of `parts`."""
    several = {json.dumps(part, sort_keys=True): part for part in parts if part is not True}
    if len(several) < 2:
        return next(iter(several.values()), True)
    return False if False in several.values() else {"allOf": [*several.values()]}


def property_of(joined: Joined, name: str) -> Schema:
    """Return the schema of a property."""
    return both(part for one in joined for part in _of_property(one, name))


def _of_property(schema: Mapping[str, Any], name: str) -> Iterator[Schema]:
    try:
        patterns = [part for key, part in schema.get("patternProperties", {}).items() if re.search(key, name)]
    except re.error as error:
        raise ConfigError(f"patternProperties cannot be read: {error}") from error
    yield from patterns
    if name in schema.get("properties", {}):
        yield schema["properties"][name]
    elif not patterns:
        yield schema.get("additionalProperties", True)


def names_in(joined: Joined) -> list[str]:
    """Return the names of properties and of those that are required, in the order in which they stand."""
    return [*dict.fromkeys(name for key in ("properties", "required") for one in joined for name in one.get(key, ()))]


def schema_of_argument(root: Schema, name: str) -> Schema:
    """Return the schema of an argument of a tool, whose schema is `root`, which `whole` made."""
    try:
        several = [property_of(joined, name) for joined in alternatives(root, root)]
    except ConfigError:  # the whole of the arguments is checked anyway
        return True
    defs = {} if isinstance(root, bool) else {"$defs": root.get("$defs", {})}
    return True if True in several else {"anyOf": several, **defs}
