"""The keys of all settings, and error messages for unknown ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline import PROJECT
from pipeline.api.errors import did_you_mean
from pipeline.api.keys import default_of
from pipeline.api.removed import removed
from pipeline.config.annotations import hints_of
from pipeline.config.build import load_object
from pipeline.settings import GROUPS, JobSettings, NodeSettings
from pipeline.system.yaml_text import read_yaml

CONF = PROJECT / "conf"
SCHEMA = "schema"
FREE_FORM = (
    *("data.storage_options", "data.schema", "data.types", "data.rename", "model.options", "output.storage_options"),
    *("model.headers", "model.query", "model.extra_body", "model.price_per_million"),
    *("sampling.logit_bias", "sampling.structured.json_schema", "cluster.resources"),
)
"""Settings with keys of the user's choice."""


@cache
def schemas() -> Mapping[str, Mapping[str, type[Any]]]:
    """Return the dataclasses of each config group by their Hydra names, as conf/schemas.yaml lists them."""
    named = read_yaml((CONF / "schemas.yaml").read_text(encoding="utf-8"))
    each = {group: {SCHEMA: classes} if isinstance(classes, str) else classes for group, classes in named.items()}
    return {group: {name: load_object(target) for name, target in targets.items()} for group, targets in each.items()}


@cache
def made_options() -> Mapping[str, Mapping[str, Any]]:
    """Return the options of config groups that are no files of conf/, with their values: the `options` of the first
    dataclass of a group."""
    return {group: getattr(each[SCHEMA], "options", {}) for group, each in schemas().items() if SCHEMA in each}


@cache
def options() -> Mapping[str, Sequence[str]]:
    """Return the names of the options of each config group."""
    names = {group: {*made} for group, made in made_options().items()}
    for path in CONF.glob("*/*.yaml"):
        names.setdefault(path.parent.name, set()).add(path.stem)
    return {group: sorted(each) for group, each in names.items()}


@cache
def known_keys() -> Mapping[str, Any]:
    """Return all keys of settings with their annotations, except those below `nodes`."""
    of_groups = (
        pair for group, options in schemas().items() for cls in options.values() for pair in _keys_of(cls, f"{group}.")
    )
    of_job = ((key, hint) for key, hint in _keys_of(JobSettings) if key not in (*GROUPS, "nodes", "steps"))
    return dict((*of_groups, *of_job))


def key_of_class(name: str) -> str:
    """Return the key whose settings are of the class `name`; empty if there is none."""
    of_groups = ((group, cls) for group, options in schemas().items() for cls in options.values())
    return next((key for key, hint in (*of_groups, *known_keys().items()) if getattr(hint, "__name__", "") == name), "")


def unknown_keys(config: DictConfig, above: str = "") -> Iterator[str]:
    """Yield the keys of `config` that no settings class has: OmegaConf does not check keys added with `+`."""
    kind = OmegaConf.get_type(config)
    fields = {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else None
    if fields is None and above.removesuffix(".") in GROUPS:  # a group without a chosen option
        fields = set()
    for name in config:  # keys of the user's choice may be numbers
        key, inside = str(name), config._get_node(name)
        if fields is not None and key not in fields:
            yield f"{above}{key}"
        elif isinstance(inside, DictConfig) and isinstance(inside._value(), dict):  # no interpolation, no null
            yield from unknown_keys(inside, f"{above}{key}.")


def unknown_key(key: str) -> str:
    """Return the error message for the unknown `key`, with the one that may be meant."""
    if gone := removed(key):
        return gone
    if key.startswith("nodes."):
        return _unknown_in_graph(*key.removeprefix("nodes.").partition(".")[::2])
    if key.startswith("steps."):
        return f"unknown key '{key}' in the job's steps; to add it write +{key}=..."
    if free := next((f for f in FREE_FORM if key.startswith(f"{f}.")), None):
        return f"{free} has no '{key.removeprefix(f'{free}.')}' yet; to add it write +{key}=..."
    keys = known_keys()
    group, _, leaf = key.rpartition(".")
    if key == "prompt":
        return "unknown key 'prompt'; it is one of a step (steps: {answer: {prompt: ...}}), or is data.prompt_template"
    if key in keys and group in options() and group not in GROUPS:
        return f"'{key}' takes an option of {group} beside it: {group}={' or '.join(options()[group])}"
    if key in keys and group not in GROUPS:
        return f"'{key}' cannot be given beside {group}=...; leave that one out, the keys of {group} do without it"
    if key in keys:
        return f"'{key}' is a key of another option of {group}; choose that one ({group}=...)"
    inside = [k.rpartition(".")[2] for k in keys if k.rpartition(".")[0] == group]
    # `name` is a key of the job: below a group something else is meant
    elsewhere = [k for k in keys if k.rpartition(".")[2] == leaf != "name"]
    hint = f"; did you mean {elsewhere[0]}?" if elsewhere else did_you_mean(leaf, inside, f"{group}." if group else "")
    hint = hint or ("" if inside else did_you_mean(key, [*keys, *GROUPS]))
    listed = f"; the keys of {group} are {', '.join(inside)}" if group and inside and not hint else ""
    return f"unknown key '{key}'{hint}{listed}"


def _unknown_in_graph(node: str, key: str) -> str:
    if not key:
        return (
            f"unknown key 'nodes.{node}': there is no such node (show=graph prints them); the command line changes"
            " nodes, and a new one is written in a job file"
        )
    if not key.startswith("op."):
        keys = [f.name for f in dataclasses.fields(NodeSettings)]
        hint = did_you_mean(key, keys)
        return f"unknown key 'nodes.{node}.{key}'{hint}; the keys of a node are {', '.join(keys)}"
    return (
        f"unknown key 'nodes.{node}.{key}' in the graph; to add it write +nodes.{node}.{key}=..., and where a node"
        " takes a whole group (sampling: ${sampling}) set the group's key instead (sampling.temperature=...)"
    )


def _keys_of(settings: type[Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of a settings class, and of the settings classes nested in it, with their annotations."""
    defaults = {each.name: default_of(each) for each in dataclasses.fields(settings)}
    for name, hint in hints_of(settings).items():
        yield f"{above}{name}", hint
        if isinstance(of_mapping := defaults.get(name), dict):  # as `report`, which is true or false or has keys
            yield from ((f"{above}{name}.{key}", type(value)) for key, value in of_mapping.items())
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from _keys_of(hint, f"{above}{name}.")
