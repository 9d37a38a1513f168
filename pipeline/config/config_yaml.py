"""config.yaml: write the settings of a run beside its results, and read them back for `verify repair=true`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from pipeline.api.errors import ConfigError
from pipeline.api.removed import without_removed
from pipeline.config.annotations import marked
from pipeline.config.build import convert
from pipeline.config.fingerprint import differences, flat
from pipeline.config.keys import schemas
from pipeline.settings import GROUPS, ClusterSettings, HookSettings, JobSettings, NodeSettings
from pipeline.system.redaction import comparable, for_keeping, found_again
from pipeline.system.yaml_text import read_yaml, write_yaml


def to_yaml(settings: JobSettings) -> str:
    """Return the text of config.yaml, without credentials and without the arguments of `on_finish.command`."""
    values = asdict(settings)
    for model in _models(values):
        if model.get("room") is not None:
            del model["room"]  # the values of `runtime`, which stand there
    return write_yaml(for_keeping(values, marked=marked(settings.nodes)))


def changes(before: str | None, now: str) -> list[str]:
    """Return `key: old -> new` for each key that differs between two texts of config.yaml. `before`: None for none."""
    if before in (None, now):
        return []
    old, new = (comparable(dict(flat("", read_yaml(text) or {}))) for text in (before, now))
    keys = {key for key in {**old, **new} if old.get(key) != new.get(key)}
    # A group that is passed to a node is listed below that node too: keep only the group's own key.
    shown = {key for key in keys if not key.startswith(".nodes.") or f".{key.partition('.op.')[2]}" not in keys}
    old, new = ({key: side.get(key) for key in shown} for side in (old, new))
    return [line.removeprefix(".") for line in differences(old, new)]


def origin() -> dict[str, Any]:
    """Return the current directory and sys.path, on which relative paths and imports of user code depend."""
    return {"directory": str(Path.cwd()), "modules": [str(Path(p).absolute()) for p in sys.path]}


@contextlib.contextmanager
def in_original_environment(origin: Mapping[str, Any]) -> Iterator[None]:
    """Restore the directory and the entries of sys.path in `origin` for the block, if they still exist."""
    directory = origin.get("directory")
    modules = [path for path in origin.get("modules", []) if path not in sys.path and Path(path).exists()]
    sys.path.extend(modules)
    try:
        with contextlib.chdir(directory if directory and Path(directory).is_dir() else os.curdir):
            yield
    finally:
        for path in modules:
            sys.path.remove(path)


def settings_from(text: str, directory: Path) -> JobSettings:
    """Return the settings in `text`, a config.yaml, for a run in `directory`. Raises ConfigError if it is damaged or of
    another version, SecretMissing if a secret is nowhere."""
    try:
        values = read_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"it is not YAML: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("nodes"), dict):
        raise ConfigError("it does not describe a job")
    values = found_again(without_removed(_with_chosen_weights(values)))
    if isinstance(runtime := values.get("runtime"), dict):
        room = convert("runtime", runtime, _schema("runtime", runtime))
        for model in _models(values):
            model.setdefault("room", room)
    raw = {group: values[group] for group in GROUPS if isinstance(values.get(group), dict)}
    groups = {group: convert(group, group_values, _schema(group, group_values)) for group, group_values in raw.items()}
    # A node that was given a whole group must get an equal object, so that the fingerprint has the group's keys.
    pairs = [pair for group, group_values in raw.items() for pair in _pairs(group_values, groups[group])]
    nodes = {name: _node(name, node, pairs) for name, node in values["nodes"].items()}
    if isinstance(cluster := values.get("cluster"), dict):
        groups["cluster"] = convert("cluster", cluster, ClusterSettings)
    settings: JobSettings = convert("job", {**values, **groups, "nodes": nodes}, JobSettings)
    # A repair needs no notification, and config.yaml does not have all of `on_finish`.
    return replace(
        settings, on_finish=HookSettings(), output_dir=str(directory), overwrite=False, dry_run=False, show=None
    )


def _models(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings of models, as mappings, of a job and of its nodes."""
    ops = [node.get("op") for node in values["nodes"].values() if isinstance(node, dict)]
    for model in (values.get("model"), *(op.get("model") for op in ops if isinstance(op, dict))):
        if isinstance(model, dict) and "loader" in model:  # one of ours
            yield model


def _with_chosen_weights(values: Any) -> Any:
    """Return settings of an older version whose `model.weights=auto` is the type that it had chosen."""
    if not isinstance(values, Mapping):
        return values
    settings = {key: _with_chosen_weights(value) for key, value in values.items()}
    chosen = settings.get("weights_chosen") if settings.get("weights") == "auto" else None
    return settings | {"weights": chosen} if chosen else settings


def _schema(group: str, values: Mapping[str, Any]) -> type[Any]:
    """Return the dataclass of a group whose fields are the keys of `values`, else the first one."""
    options = list(schemas()[group].values())
    return next((cls for cls in options if {f.name for f in fields(cls)} == values.keys()), options[0])


def _pairs(raw: dict[str, Any], group: object) -> Iterator[tuple[dict[str, Any], object]]:
    """Yield (mapping, dataclass made from it) for `raw` and all dataclasses nested in it."""
    yield raw, group
    for key, value in raw.items():
        inner = getattr(group, key)
        if isinstance(value, dict) and is_dataclass(inner):
            yield from _pairs(value, inner)


def _node(name: str, values: Any, pairs: list[tuple[dict[str, Any], object]]) -> NodeSettings:
    if not isinstance(values, dict) or not isinstance(values.get("op"), dict):
        raise ConfigError(f"the node '{name}' has no op")
    op = {key: next((group for raw, group in pairs if raw == value), value) for key, value in values["op"].items()}
    op |= {key: _group(key, value) for key, value in op.items() if key in GROUPS and isinstance(value, dict)}
    node: NodeSettings = convert(name, {**values, "op": op}, NodeSettings)
    return node


def _group(key: str, values: dict[str, Any]) -> Any:
    """Return the dataclass whose every field is in `values`, as a step that changes a group has it; else `values`."""
    cls = _schema(key, values)
    return convert(key, values, cls) if {f.name for f in fields(cls)} == values.keys() else values
