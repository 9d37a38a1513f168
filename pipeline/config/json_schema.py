"""A JSON schema of job files, by which editors complete keys, explain them and mark what cannot be: made of the
dataclasses of settings and of the operators' arguments, with what their docstrings say.

It is wider than the check of a run, which knows values and the rest of the job: what it marks, a run refuses, but for
numbers that are written as texts.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from pipeline.api.docstrings import arguments, as_written
from pipeline.config.build import TARGET, hints_of, load_object
from pipeline.config.expand import OVERRIDDEN, STEP
from pipeline.config.keys import schemas
from pipeline.settings import JobSettings, NodeSettings

Schema = dict[str, Any]
_INTERPOLATION: Schema = {"type": "string", "pattern": r"\$\{"}
_SCALARS = {str: "string", bool: "boolean", int: "integer", float: "number", types.NoneType: "null"}


def of_jobs() -> Schema:
    """Return the schema of a job file."""
    groups = {group: _any_of(map(_of_class, options.values())) for group, options in schemas().items()}
    operator, refer = _of_operator(), {group: {"$ref": f"#/$defs/{group}"} for group in groups}
    node, step = _of_class(NodeSettings), _of_class(load_object(STEP))
    node["properties"]["op"] = step["properties"]["op"] = {"$ref": "#/$defs/operator"}
    step["properties"] |= {group: refer[group] for group in OVERRIDDEN}
    job = _of_class(JobSettings)
    job["properties"] |= {group: _any_of([refer[group], {"type": "null"}]) for group in groups}
    job["properties"] |= {
        "defaults": {"type": "array", "description": "options of config groups: `- override /model: gguf`"},
        "steps": {"type": "object", "additionalProperties": step} | _said(JobSettings, "steps"),
        "nodes": {"type": "object", "additionalProperties": node} | _said(JobSettings, "nodes"),
    }
    title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "a job of python -m pipeline"}
    return title | job | {"$defs": groups | {"operator": operator}}


def _of_operator() -> Schema:
    """Return the schema of `op`: arguments are known where `_target_` is one of our operators."""
    known = [(target, load_object(target)) for target in load_object("operators.catalog:targets")()]
    named = {TARGET: {"type": "string", "examples": [target for target, _ in known]}}
    rules = [
        {"if": {"properties": {TARGET: {"const": target}}, "required": [TARGET]}, "then": _of_arguments(factory)}
        for target, factory in known
    ]
    return _any_of([_INTERPOLATION, {"type": "object", "properties": named, "allOf": rules}])


def _of_arguments(factory: Any) -> Schema:
    """Return the schema of the arguments of an operator. Those that are missing may be filled in by the job."""
    hints = hints_of(factory)
    names = {name: hints.get(name, Any) for name in inspect.signature(factory).parameters}
    values = {as_written(name): _of_value(hint) | _said(factory, as_written(name)) for name, hint in names.items()}
    return {"properties": {TARGET: {}} | values, "additionalProperties": False}


def _of_class(settings: type[Any]) -> Schema:
    """Return the schema of a dataclass of settings, of which a job names any keys."""
    hints = typing.get_type_hints(settings)
    values = {
        field.name: _of_value(hints[field.name]) | _said(settings, field.name) | _default(field)
        for field in dataclasses.fields(settings)
    }
    return {"type": "object", "properties": values, "additionalProperties": False}


def _of_value(hint: Any) -> Schema:
    """Return the schema of a value with the annotation `hint`; where none is known, of any value."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _any_of([_of_value(option) for option in inside])
    if origin is typing.Literal:
        return {"enum": list(inside)}
    if hint is None or (isinstance(hint, type) and hint in _SCALARS):
        scalar = {"type": _SCALARS[types.NoneType if hint is None else hint]}
        return scalar if hint is str else _any_of([scalar, _INTERPOLATION])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [each.value for each in hint]}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _any_of([_of_class(hint), _INTERPOLATION])
    kind = origin or hint
    if kind in (dict, Mapping):
        rest = _of_value(inside[1]) if inside else {}
        return _any_of([{"type": "object", "additionalProperties": rest}, _INTERPOLATION])
    if kind in (list, tuple, Sequence, Iterable):
        items = _of_value(inside[0]) if len(set(inside) - {Ellipsis}) == 1 else {}
        return _any_of([{"type": "array", "items": items}, _INTERPOLATION])
    return {}


def _any_of(options: Iterable[Schema]) -> Schema:
    """Return the schema of a value that one of `options` allows."""
    each: list[Schema] = []
    for option in options:
        inside = option["anyOf"] if option.keys() == {"anyOf"} else [option]
        each += [one for one in inside if one not in each]
    if {} in each:
        return {}
    return each[0] if len(each) == 1 else {"anyOf": each}


def _said(documented: type[Any], name: str) -> Schema:
    """Return what the docstrings of a class and of those above it say of `name`."""
    texts = (text for each in documented.__mro__ for names, text in arguments(each) if name in names)
    return {"description": text} if (text := next(texts, None)) else {}


def _default(field: dataclasses.Field[Any]) -> Schema:
    return {"default": field.default} if isinstance(field.default, str | int | float | bool) else {}
