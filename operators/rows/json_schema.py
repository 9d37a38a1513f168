"""JSON schemas: checks of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pipeline.api.errors import ConfigError, install

_MAX_MESSAGE = 200
"""Characters kept of a jsonschema message: it quotes the value, which may be long."""
Validate = Callable[[Any], str | None]


def validator(schema: Any, what: str) -> Validate:
    """Return a function that describes the most relevant error that jsonschema finds in a value, or returns None.

    Raises:
        ConfigError: jsonschema is not installed, the schema is none, or refers to something outside of it. The message
            begins with `what`.
    """
    try:
        import jsonschema
        from referencing import Registry
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import specification_with
    except ImportError as error:
        raise ConfigError(f"{what} needs the package jsonschema: {install('json')}") from error
    cls = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        cls.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ConfigError(f"{what}, at {error.json_path}: {error.message}") from error
    registry: Any = Registry()  # empty, so nothing is fetched from the web
    root = specification_with(cls.META_SCHEMA["$schema"]).create_resource(schema)
    for reference, lookup in _references(registry.resolver_with_root(root), root):
        try:
            lookup(reference)
        except Unresolvable as error:
            raise ConfigError(
                f"{what}: $ref {reference!r} leads out of it or nowhere; write it out in $defs"
            ) from error
    checks = cls(schema, registry=registry)

    def breach(value: Any) -> str | None:
        try:
            found = jsonschema.exceptions.best_match(checks.iter_errors(value))
        except RecursionError:
            return "$ is nested too deeply for the schema"
        except OverflowError:
            return "$ has a number beyond what the schema can be held against"
        return None if found is None else f"{found.json_path}: {found.message[:_MAX_MESSAGE]}"

    return breach


def _references(resolver: Any, resource: Any) -> Iterator[tuple[str, Callable[[str], Any]]]:
    """Yield each $ref of a schema (a resource of the package referencing) and of its subschemas, with a function that
    resolves it."""
    reference = resource.contents.get("$ref") if isinstance(resource.contents, Mapping) else None
    if isinstance(reference, str):
        yield reference, resolver.lookup
    for inner in resource.subresources():
        yield from _references(resolver.in_subresource(inner), inner)
