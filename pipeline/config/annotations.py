"""Check values of a job file against the type annotations of operators' arguments and of settings."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.api.secret import IS_SECRET

_UNIONS = (types.UnionType, typing.Union)


def fits(value: object, hint: object) -> bool:
    """Return True if `value` matches the annotation `hint`, or if `hint` is of a kind that is not checked."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        return any(fits(value, option) for option in inside)
    if hint in (None, types.NoneType):
        return value is None
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    if hint in (str, bool):
        return isinstance(value, typing.cast("type[Any]", hint))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return isinstance(value, hint)
    kind = origin or hint
    if kind in (dict, Mapping):
        keys, values = inside or (Any, Any)
        return isinstance(value, Mapping) and all(fits(k, keys) and fits(v, values) for k, v in value.items())
    if kind in (list, tuple, Sequence, Iterable):
        return isinstance(value, list | tuple) and all(
            fits(v, h) for v, h in zip(value, _items(inside, value), strict=False)
        )
    return True


def unquoted(value: object, hint: object) -> str:
    """Return the hint to add quotes, for the end of an error, if `value` would fit with its numbers and booleans as
    strings; else an empty text."""
    bare: list[object] = []
    if fits(_as_texts(value, bare), hint) and bare:
        return f"; {quoted(str(bare[0]), type(bare[0]).__name__)}"
    return ""


def quoted(value: str, kind: str) -> str:
    """Return how to quote a number or a boolean that is meant as a string. `kind`: its Python type."""
    if kind != "bool":
        return f'{value} is a number here, not a text; write "{value}", with the quotes'
    words = '"yes", "on" or "true"' if value == "True" else '"no", "off" or "false"'
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


def _items(inside: tuple[Any, ...], values: Sequence[object]) -> Sequence[Any]:
    """Return the annotation of each of `values`, for a container with the arguments `inside`."""
    if len(inside) == 1 or (len(inside) == 2 and inside[1] is Ellipsis):
        return [inside[0]] * len(values)
    return inside or [Any] * len(values)


def in_words(hint: object) -> str:
    """Describe the values that `hint` accepts."""
    if typing.get_origin(hint) in _UNIONS:
        return " or ".join(in_words(option) for option in typing.get_args(hint))
    if hint in (None, types.NoneType):
        return "null"
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return f"a mapping with keys of {', '.join(f.name for f in dataclasses.fields(hint))}"
    if typing.get_origin(hint) in (dict, Mapping):
        return "a mapping"
    named: dict[object, str] = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return named.get(hint) or str(hint).replace("collections.abc.", "")


def marked(nodes: Mapping[str, Any]) -> set[tuple[str, ...]]:
    """Return the places of arguments that their operators mark as `Secret`. `nodes`: their settings, or these
    as mappings; their operators have been imported."""
    found = set()
    for name, node in nodes.items():
        given = node.get("op") if isinstance(node, Mapping) else getattr(node, "op", None)
        op = given if isinstance(given, Mapping) else {}
        module, _, target = str(op.get("_target_")).replace(":", ".").rpartition(".")
        factory = getattr(sys.modules.get(module), target, None)
        found |= {("nodes", name, "op", *place) for place in _secrets_of(factory)}
    return found


def _secrets_of(factory: Any) -> Iterator[tuple[str, ...]]:
    """Yield the places of secrets below the arguments of `factory`."""
    is_plain = isinstance(factory, type) and not dataclasses.is_dataclass(factory)
    annotated: Any = factory.__init__ if is_plain else factory
    try:
        hints = typing.get_type_hints(annotated, include_extras=True)
    except (NameError, TypeError, AttributeError):  # annotations that exist only for a type checker; no factory
        return
    for name, hint in hints.items():
        yield from ((name, *place) for place in _secrets_in(hint))


def _secrets_in(hint: Any) -> Iterator[tuple[str, ...]]:
    if IS_SECRET in getattr(hint, "__metadata__", ()):
        yield ()
    elif dataclasses.is_dataclass(hint):
        yield from _secrets_of(hint)
    else:
        for inside in typing.get_args(hint):
            yield from _secrets_in(inside)
