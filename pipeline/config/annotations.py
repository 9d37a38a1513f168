"""Reads annotations, of the arguments of operators and of the fields of settings: the values that they allow.

`allowed` alone knows the kinds of annotations; the check of a value, its conversion, the words of errors and the JSON
schema of a job follow from what it returns.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pipeline.api.docstrings import arguments, as_written
from pipeline.api.secret import IS_SECRET

Schema = dict[str, Any]
INTERPOLATION: Schema = {"type": "string", "pattern": r"\$\{"}
_SCALARS: Mapping[Any, tuple[str, str, tuple[type, ...]]] = {
    int: ("a whole number", "integer", (int,)),
    float: ("a number", "number", (int, float)),
    str: ("a text", "string", (str,)),
    bool: ("true or false", "boolean", (bool,)),
    types.NoneType: ("null", "null", (types.NoneType,)),
    None: ("null", "null", (types.NoneType,)),
}
"""Of each: its words, its JSON type, and the types of its values."""


@dataclass(frozen=True)
class Allowed:
    """The values that an annotation allows.

    Args:
        words: a description for error messages.
        fits: returns True for such a value.
        schema: returns the JSON schema, which also takes an interpolation in place of a value.
        settings: the dataclass that a mapping becomes; None: mappings stay as they are.
        is_function: a text is the name of a function to import.
    """

    words: str
    fits: Callable[[Any], bool]
    schema: Callable[[], Schema] = dict
    settings: type[Any] | None = None
    is_function: bool = False


def allowed(hint: Any) -> Allowed:
    """Return what the annotation `hint` allows: any value, if it is of a kind that is not checked."""
    kind, inside = typing.get_origin(hint) or hint, typing.get_args(hint)
    words = str(hint).replace("collections.abc.", "")
    if kind in (types.UnionType, typing.Union):
        options = [allowed(option) for option in inside]
        return Allowed(
            " or ".join(option.words for option in options),
            lambda value: any(option.fits(value) for option in options),
            lambda: any_of(option.schema() for option in options),
            next((option.settings for option in options if option.settings), None),
            any(option.is_function for option in options),
        )
    if scalar := _SCALARS.get(kind) if isinstance(kind, type | None) else None:
        words, name, classes = scalar
        return Allowed(
            words,
            lambda value: isinstance(value, classes) and (kind is bool or not isinstance(value, bool)),
            lambda: {"type": name} if kind is str else _or_reference({"type": name}),
        )
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        words = f"a mapping with keys of {', '.join(field.name for field in dataclasses.fields(kind))}"
        return Allowed(words, lambda value: isinstance(value, kind), lambda: _or_reference(schema_of(kind)), kind)
    if kind in (dict, Mapping):
        keys, values = map(allowed, inside or (Any, Any))
        return Allowed(
            "a mapping" if inside else words,
            lambda value: isinstance(value, Mapping) and all(keys.fits(k) and values.fits(v) for k, v in value.items()),
            lambda: _or_reference({"type": "object", "additionalProperties": values.schema()}),
        )
    if kind in (list, tuple, Sequence, Iterable):
        each = [allowed(part) for part in inside if part is not Ellipsis]
        parts = itertools.repeat(each[0]) if len(each) == 1 else each
        items = each[0].schema if len(each) == 1 else dict
        return Allowed(
            words,
            lambda value: (
                isinstance(value, list | tuple) and all(p.fits(v) for p, v in zip(parts, value, strict=False))
            ),
            lambda: _or_reference({"type": "array", "items": items()}),
        )
    return Allowed(words, lambda value: True, is_function=kind is Callable)


def hints_of(factory: Any, *, with_marks: bool = False) -> Mapping[str, Any]:
    """Return the annotations of a function's parameters, of a dataclass's fields or of a constructor's parameters.
    `with_marks`: `Secret` too."""
    return _hints_of_class(factory, with_marks) if isinstance(factory, type) else _hints(factory, with_marks)


@lru_cache(maxsize=1024)
def _hints_of_class(factory: type[Any], with_marks: bool) -> Mapping[str, Any]:
    return _hints(factory if dataclasses.is_dataclass(factory) else factory.__init__, with_marks)


def _hints(annotated: Any, with_marks: bool) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(annotated, include_extras=with_marks)
    except (NameError, TypeError, AttributeError):  # annotations that exist only for a type checker; no factory
        return {}


def unquoted(value: object, allows: Allowed) -> str:
    """Return the hint to add quotes, for the end of an error, if `value` would fit with its numbers and booleans as
    strings; else an empty text."""
    bare: list[object] = []
    return f"; {quoted(bare[0])}" if allows.fits(_as_texts(value, bare)) and bare else ""


def quoted(value: object) -> str:
    """Return how to quote a number or a boolean that is meant as a string."""
    if not isinstance(value, bool):
        return f'{value} is a number here, not a text; write "{value}", with the quotes'
    words = '"yes", "on" or "true"' if value else '"no", "off" or "false"'
    return f"{value} is a boolean here, not a text: YAML reads words like yes and no so; write {words}, with the quotes"


def _as_texts(value: object, bare: list[object]) -> object:
    """Return `value` with its numbers and booleans as strings; these values are also appended to `bare`."""
    if isinstance(value, Mapping):
        return {_as_texts(key, bare): _as_texts(inside, bare) for key, inside in value.items()}
    if isinstance(value, list):
        return [_as_texts(inside, bare) for inside in value]
    if isinstance(value, bool | int | float):
        bare.append(value)
        return str(value)
    return value


def schema_of(factory: Any) -> Schema:
    """Return the schema of the arguments of an operator or of a dataclass of settings, of which a job names any, with
    what the docstrings of the class and of those above it say of each."""
    hints, values = hints_of(factory), dict[str, Schema]()
    texts = {name: text for each in reversed(factory.__mro__) for names, text in arguments(each) for name in names}
    for argument, parameter in inspect.signature(factory).parameters.items():
        name = as_written(argument)
        values[name] = allowed(hints.get(argument, Any)).schema()
        if name in texts:
            values[name] |= {"description": texts[name]}
        if dataclasses.is_dataclass(factory) and isinstance(parameter.default, str | int | float):
            values[name] |= {"default": parameter.default}
    return {"type": "object", "properties": values, "additionalProperties": False}


def any_of(options: Iterable[Schema]) -> Schema:
    """Return the schema of a value that one of `options` allows."""
    each: list[Schema] = []
    for option in options:
        inside = option["anyOf"] if option.keys() == {"anyOf"} else [option]
        each += [part for part in inside if part not in each]
    if {} in each:
        return {}
    return each[0] if len(each) == 1 else {"anyOf": each}


def _or_reference(schema: Schema) -> Schema:
    """Return the schema of a value in whose place a job may have an interpolation."""
    return any_of([schema, INTERPOLATION])


def marked(nodes: Mapping[str, Any]) -> set[tuple[str, ...]]:
    """Return the places of arguments that their operators mark as `Secret`. `nodes`: their settings, or these
    as mappings; their operators have been imported."""
    places = set()
    for name, node in nodes.items():
        op_settings = node.get("op") if isinstance(node, Mapping) else getattr(node, "op", None)
        op = op_settings if isinstance(op_settings, Mapping) else {}
        module, _, target = str(op.get("_target_")).replace(":", ".").rpartition(".")
        factory = getattr(sys.modules.get(module), target, None)
        places |= {("nodes", name, "op", *place) for place in _secrets_of(factory)}
    return places


def _secrets_of(factory: Any) -> Iterator[tuple[str, ...]]:
    """Yield the places of secrets below the arguments of `factory`."""
    if isinstance(factory, type) and dataclasses.is_dataclass(factory):
        yield from _secrets_of_settings(factory)
    else:
        for name, hint in hints_of(factory, with_marks=True).items():
            yield from ((name, *place) for place in _secrets_in(hint))


@lru_cache(maxsize=1024)
def _secrets_of_settings(settings: type[Any]) -> Sequence[tuple[str, ...]]:
    hints = hints_of(settings, with_marks=True)
    return [(name, *place) for name, hint in hints.items() for place in _secrets_in(hint)]


def _secrets_in(hint: Any) -> Iterator[tuple[str, ...]]:
    if IS_SECRET in getattr(hint, "__metadata__", ()):
        yield ()
    elif dataclasses.is_dataclass(hint):
        yield from _secrets_of(hint)
    else:
        for inside in typing.get_args(hint):
            yield from _secrets_in(inside)
