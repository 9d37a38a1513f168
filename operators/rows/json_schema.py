"""JSON schemas: checks of values, and of texts."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn

import polars as pl

from operators.rows.json_values import unique_keys
from pipeline.api.errors import ConfigError, install

_MAX_MESSAGE = 200
"""Characters kept of a jsonschema message: it quotes the value, which may be long."""
_MOST_KEPT = 256
"""Validators and patterns in the caches; a job has more only if a column gives each row its own schema."""
Validate = Callable[[Any], str | None]


def validator(schema: Any, what: str) -> Validate:
    """Return a function that describes the most relevant error that jsonschema finds in a value, or returns None.

    Patterns are those of llguidance (Rust's), and multiples are exact.

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
    draft: Any = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    formats = jsonschema.FormatChecker(())
    formats.checks("regex", raises=re.error)(lambda text: not isinstance(text, str) or bool(_search(text)))
    try:
        draft.check_schema(schema, format_checker=formats)
    except jsonschema.SchemaError as error:
        raise ConfigError(f"{what}, at {error.json_path}: {error.message}") from error
    registry: Any = Registry()  # empty, so nothing is fetched from the web
    root = specification_with(draft.META_SCHEMA["$schema"]).create_resource(schema)
    for reference, lookup in _references(registry.resolver_with_root(root), root):
        try:
            lookup(reference)
        except Unresolvable as error:
            raise ConfigError(
                f"{what}: $ref {reference!r} leads out of it or nowhere; write it out in $defs"
            ) from error
    if isinstance(schema, Mapping):  # a reference to the root would take the draft of that name instead
        schema = {key: value for key, value in schema.items() if key != "$schema"}
    checks = _exact(draft)(schema, registry=registry)

    def breach(value: Any) -> str | None:
        try:
            error = jsonschema.exceptions.best_match(checks.iter_errors(value))
        except RecursionError:
            return "$ is nested too deeply for the schema"
        except (OverflowError, ValueError):
            return "$ has a number or a character beyond what the schema can be held against"
        return None if error is None else f"{error.json_path}: {error.message[:_MAX_MESSAGE]}"

    return breach


def text_check(schema: Any, what: str) -> Callable[[str], str | None]:
    """Return a function that says why a text is no JSON that the schema of the setting `what` allows, or returns None.
    Numbers are read as they are written. One beyond a double and a key that comes twice, which other readers may read
    otherwise, do not fit.

    Raises:
        ConfigError: see validator.
    """
    try:
        return _text_check(json.dumps(schema, allow_nan=False), what)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{what} is no JSON schema: {error}") from error


@functools.lru_cache(_MOST_KEPT)
def _text_check(schema: str, what: str) -> Callable[[str], str | None]:
    breach = validator(_READER.decode(schema), what)

    def check(text: str) -> str | None:
        try:
            reason = breach(_READER.decode(text))
        except json.JSONDecodeError as error:
            reason = f"no JSON: {error.msg}, at line {error.lineno}, column {error.colno}"
        except KeyError as error:
            reason = f"the key {json.dumps(error.args[0])} comes twice in an object"
        except (ValueError, RecursionError) as error:  # NaN, 1e999; thousands of brackets
            reason = f"no JSON: {error}"
        return None if reason is None else f"the text does not fit {what}: {reason}"

    return check


class Exact(Decimal):
    """A number with a fraction or an exponent, as it is written."""

    def __repr__(self) -> str:
        return str(self)


def _number(text: str) -> Exact:
    double = float(text)
    if math.isinf(double) or (not double and text.lower().partition("e")[0].strip("-0.")):
        raise ValueError(f"the number {text[:40]} is beyond what a double holds")
    return Exact(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


_READER = json.JSONDecoder(
    parse_float=_number,
    parse_int=lambda text: int(_number(text)),
    parse_constant=_refuse_constant,
    object_pairs_hook=unique_keys,
)


@functools.cache
def _exact(draft: Any) -> Any:
    """Return the validator class of a draft of JSON Schema, which knows Exact."""
    import jsonschema

    extend: Any = jsonschema.validators.extend
    checker, additional = draft.TYPE_CHECKER, draft.VALIDATORS.get("additionalProperties")
    whole_floats = checker.is_type(1.0, "integer")

    def is_whole(_: Any, value: Any) -> bool:
        return checker.is_type(value, "integer") or (
            whole_floats and isinstance(value, Exact) and value == value.to_integral_value()
        )

    def multiple(validator: Any, of: Any, value: Any, _: Any) -> Iterator[Any]:
        if validator.is_type(value, "number") and Fraction(str(value)) % Fraction(str(of)):
            yield jsonschema.ValidationError(f"{value!r} is not a multiple of {of!r}")

    def pattern(validator: Any, wanted: str, value: Any, _: Any) -> Iterator[Any]:
        if validator.is_type(value, "string") and not _search(wanted)(value):
            yield jsonschema.ValidationError(f"{value!r} does not match {wanted!r}")

    def by_pattern(validator: Any, patterns: Mapping[str, Any], value: Any, _: Any) -> Iterator[Any]:
        for wanted, part in patterns.items() if validator.is_type(value, "object") else ():
            for key in filter(_search(wanted), value):
                yield from validator.descend(value[key], part, path=key, schema_path=wanted)

    def others(validator: Any, part: Any, value: Any, schema: Any) -> Iterator[Any]:
        searches = [_search(wanted) for wanted in schema.get("patternProperties", ())]
        if searches and validator.is_type(value, "object"):
            value = {key: inner for key, inner in value.items() if not any(search(key) for search in searches)}
            schema = {key: inner for key, inner in schema.items() if key != "patternProperties"}
        yield from additional(validator, part, value, schema)

    ours = {
        "multipleOf": multiple,
        "divisibleBy": multiple,
        "pattern": pattern,
        "patternProperties": by_pattern,
        "additionalProperties": others,
    }
    changed = {key: function for key, function in ours.items() if key in draft.VALIDATORS}
    return extend(draft, changed, type_checker=checker.redefine("integer", is_whole))


@functools.lru_cache(_MOST_KEPT)
def _search(pattern: str) -> Callable[[str], bool]:
    """Return a search for `pattern`, a regex of Rust, or of Python (look-around). Raise re.error if it is neither."""
    try:
        pl.Series([""]).str.contains(pattern)
    except pl.exceptions.ComputeError:
        compiled = re.compile(pattern)
        return lambda text: compiled.search(text) is not None
    return lambda text: bool(pl.Series([text]).str.contains(pattern)[0])


def _references(resolver: Any, resource: Any) -> Iterator[tuple[str, Callable[[str], Any]]]:
    """Yield each $ref of a schema (a resource of the package referencing) with a function that resolves it."""
    reference = resource.contents.get("$ref") if isinstance(resource.contents, Mapping) else None
    if isinstance(reference, str):
        yield reference, resolver.lookup
    for inner in resource.subresources():
        yield from _references(resolver.in_subresource(inner), inner)
