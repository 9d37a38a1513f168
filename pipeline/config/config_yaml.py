"""config.yaml: the settings of a run, kept beside its results, and how they become a job again.

A run that is to be mended is run from here, not from the command line that began it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

from pipeline.api.errors import ConfigError
from pipeline.config.build import dataclass_in
from pipeline.config.fingerprint import differences, flat
from pipeline.settings import GROUPS, HookSettings, JobSettings, NodeSettings, TargetSettings
from pipeline.system.redaction import for_keeping, shown_url

T = TypeVar("T")


def dumped(settings: JobSettings) -> str:
    """The text of config.yaml, without credentials and what may be secret in `on_finish`: who runs from it has them in
    the environment."""
    values = asdict(settings)
    told = settings.on_finish
    values["on_finish"] = {
        **values["on_finish"],
        "command": [*told.command[:1], *("..." for _ in told.command[1:])],
        "url": None if told.url is None else shown_url(told.url),
    }
    return str(yaml.safe_dump(for_keeping(values), sort_keys=False, allow_unicode=True))


def changes(before: str | None, now: str) -> list[str]:
    """`key: old -> new` for each key of config.yaml that differs from the attempt before; nothing for the first one."""
    old, new = (dict(flat("", yaml.safe_load(text) or {})) for text in (before or now, now))
    keys = {key for key in {**old, **new} if old.get(key) != new.get(key)}
    # A group that a node is given stands under the node too.
    own = {key for key in keys if not key.startswith(".nodes.") or f".{key.partition('.op.')[2]}" not in keys}
    return [line.removeprefix(".") for line in differences({k: old.get(k) for k in own}, {k: new.get(k) for k in own})]


def origin() -> dict[str, Any]:
    """Where this process was started and what it can import: relative paths and operators of a user's own."""
    return {"directory": str(Path.cwd()), "modules": [str(Path(p).absolute()) for p in sys.path]}


@contextlib.contextmanager
def as_started(origin: Mapping[str, Any]) -> Iterator[None]:
    """Inside the block, paths and imports mean what they did for the run with this `origin`, if it is still there."""
    directory = origin.get("directory")
    modules = [path for path in origin.get("modules", []) if path not in sys.path and Path(path).exists()]
    sys.path.extend(modules)
    try:
        with contextlib.chdir(directory if directory and Path(directory).is_dir() else os.curdir):
            yield
    finally:
        for path in modules:
            sys.path.remove(path)


def settings_from(text: str, directory: Path, schemas: Mapping[str, Mapping[str, type[Any]]]) -> JobSettings:
    """The job that `text` (of config.yaml) describes, for its results in `directory`.

    Args:
        schemas: the dataclasses of each config group, by name.

    Raises:
        ConfigError: it is damaged or of another version.
    """
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"it is not YAML: {error}") from error
    if not isinstance(values, dict) or "nodes" not in values:
        raise ConfigError("it does not describe a job")
    groups = {g: _filled(_schema(schemas[g], values[g]), values[g]) for g in GROUPS if isinstance(values.get(g), dict)}
    # Where a node is given a group, it was that very object, and so it stands under the group's key in the fingerprint.
    known = [pair for g, whole in groups.items() for pair in _pairs(values[g], whole)]
    nodes = {name: _node(node, known) for name, node in values["nodes"].items()}
    target = _made(TargetSettings, values.get("target") or {})
    settings = _made(JobSettings, {**values, **groups, "nodes": nodes, "target": target})
    # Who mends a run is there to see how it ends, and of `on_finish` not all is in config.yaml.
    return replace(
        settings, on_finish=HookSettings(), output_dir=str(directory), overwrite=False, dry_run=False, show=None
    )


def _schema(options: Mapping[str, type[Any]], values: Mapping[str, Any]) -> type[Any]:
    """Of the dataclasses of a group the one that has these keys: config.yaml has all of them. Else the first."""
    of_these_keys = [cls for cls in options.values() if {f.name for f in fields(cls)} == values.keys()]
    return (of_these_keys or list(options.values()))[0]


def _node(values: Any, known: list[tuple[dict[str, Any], object]]) -> NodeSettings:
    if not isinstance(values, dict) or not isinstance(values.get("op"), dict):
        raise ConfigError("a node has no op")
    op = {key: next((whole for raw, whole in known if raw == value), value) for key, value in values["op"].items()}
    return _made(NodeSettings, {**values, "op": op})


def _pairs(raw: dict[str, Any], whole: object) -> Iterator[tuple[dict[str, Any], object]]:
    """`raw` with the dataclass that was made of it, and the same for the dataclasses inside."""
    yield raw, whole
    for key, value in raw.items():
        inner = getattr(whole, key)
        if isinstance(value, dict) and is_dataclass(inner):
            yield from _pairs(value, inner)


def _filled(wanted: type[T], values: Mapping[str, Any]) -> T:
    """`values` as the dataclass `wanted`, all the way down."""
    hints = get_type_hints(wanted)
    inner = {key: dataclass_in(hints.get(key)) for key in values}
    return _made(
        wanted,
        {k: _filled(cls, v) if isinstance(v, dict) and (cls := inner[k]) is not None else v for k, v in values.items()},
    )


def _made(wanted: type[T], values: Mapping[str, Any]) -> T:
    known = {field.name for field in fields(wanted)}  # type: ignore[arg-type]  # only dataclasses come here
    if unknown := sorted(values.keys() - known):
        raise ConfigError(f"it has the key '{unknown[0]}', which this version does not know")
    return wanted(**values)
