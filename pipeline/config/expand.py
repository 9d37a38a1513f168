"""Expand what a job leaves out: steps become nodes, and nodes are given the settings that their operators name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from pipeline.api.errors import ConfigError, GraphError
from pipeline.config.annotations import allowed, hints_of
from pipeline.config.build import TARGET, convert, kind_of, load_object
from pipeline.settings import GROUPS, JobSettings, NodeSettings

STEP, EXPAND, KEY_OF = "operators.steps.step:Step", "operators.steps.expand:expand", "operators.steps.expand:key_of"
OVERRIDDEN = ("model", "sampling", "decode", "runtime", "store")
"""Config groups of which a step may have keys of its own."""


def expanded(settings: JobSettings) -> JobSettings:
    """Return the settings of the same job without `steps`: every node, with all its arguments. Raises ConfigError if an
    entry of `steps` cannot work; it names the step."""
    nodes = _with_steps(settings) if settings.steps else settings.nodes
    return replace(settings, steps={}, nodes={name: _filled(node, settings) for name, node in nodes.items()})


def typed_key(key: str, steps: Mapping[str, str]) -> str:
    """Return a key of the fingerprint as the job file has it: `steps.answer.n` for `nodes.answer.op.sampling.n`.

    `steps`: the step of each node that was made for one.
    """
    node, _, rest = key.removeprefix("nodes.").partition(".")
    step = steps.get(node) if key.startswith("nodes.") else None
    if step is None:
        return key
    key_of_step: str | None = load_object(KEY_OF)(node.removeprefix(step), rest, asks=f"{step}_prompt" in steps)
    return key if key_of_step is None else f"steps.{step}.{key_of_step}"


def _with_steps(settings: JobSettings) -> dict[str, NodeSettings]:
    steps, groups = {}, {}
    for name, step_values in settings.steps.items():
        key = f"steps.{name}"
        try:
            if not isinstance(step_values, Mapping):
                raise ConfigError(f'it is {step_values!r}, and must be a mapping: {{prompt: "..."}}')
            steps[name] = step = convert(key, step_values, load_object(STEP))
            groups[name] = {
                group: _merged(group, getattr(settings, group), getattr(step, group)) for group in OVERRIDDEN
            }
            if is_dataclass(model := groups[name]["model"]) and not isinstance(model, type):
                groups[name]["model"] = replace(model, room=groups[name]["runtime"])
        except ConfigError as error:
            where = "" if str(error).startswith(key) else f"step '{name}': "
            raise ConfigError(f"{where}{error}") from error
        seed = settings.seed if step.seed is None else step.seed
        groups[name] |= {"output": settings.output, "seed": seed, "data": settings.data}
    for name, node in settings.nodes.items():
        if not isinstance(node, NodeSettings):  # an interpolation may yield anything
            raise GraphError(name, f"is {node!r}, and must be a mapping with op and inputs")
    nodes = {name: {f.name: getattr(node, f.name) for f in fields(node)} for name, node in settings.nodes.items()}
    return {name: NodeSettings(**node) for name, node in load_object(EXPAND)(steps, nodes, groups).items()}


def _merged(key: str, group: Any, changes: Mapping[str, Any]) -> Any:
    """Return the dataclass `group` with the values of `changes`, a nested mapping."""
    if not changes:
        return group
    if (kind := kind_of(type(group), changes)) is not type(group):  # another kind of model, with nothing of the job's
        return convert(key, changes, kind)
    values = {f.name: getattr(group, f.name) for f in fields(group)}
    for name, value in changes.items():
        inside = values.get(name)
        nested = is_dataclass(inside) and isinstance(value, Mapping)
        values[name] = _merged(f"{key}.{name}", inside, value) if nested else value
    return convert(key, values, type(group))


def _filled(node: object, settings: JobSettings) -> Any:
    """Return `node` with the settings that its operator has an argument for, by name and type, and that it leaves out:
    config groups, `seed`, and `chunk_rows` where it is required. Leave what is no node (an interpolation may yield
    anything) for `build_graph` to refuse."""
    if not isinstance(node, NodeSettings):
        return node
    try:
        factory = load_object(node.op[TARGET])
        missing = {k: p for k, p in inspect.signature(factory).parameters.items() if k not in node.op}
    except (ConfigError, TypeError, ValueError, LookupError, AttributeError):  # an error of the graph, said there
        return node
    hints = hints_of(factory)
    named = [key for key in (*GROUPS, "seed") if key in missing]
    if "chunk_rows" in missing and missing["chunk_rows"].default is inspect.Parameter.empty:
        named.append("chunk_rows")
    values = {key: getattr(settings, key) for key in named}
    return replace(node, op=node.op | {key: v for key, v in values.items() if allowed(hints.get(key, Any)).fits(v)})
