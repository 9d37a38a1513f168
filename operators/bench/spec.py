"""What a child of the benchmark is told: a JSON file with the settings of its case."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from operators.engine_settings import EngineSettings
from operators.settings import DataSettings, ModelSettings, SamplingSettings

T = TypeVar("T")


@dataclass
class Spec:
    """One case as a child sees it.

    Args:
        workload: folder of the rows (see operators.bench.workload).
        model, runtime, sampling: the settings of those names; `runtime` has the slots and row length of the case.
        peers: folder of llama.cpp's programs.
        share_prefix: whether llama-server may use its prompt cache.
        server_arguments: further arguments of llama-server.
        mask_token_id: of block diffusion; None: the mask that the model names.
    """

    workload: str
    model: ModelSettings
    runtime: EngineSettings
    sampling: SamplingSettings
    peers: str
    share_prefix: bool
    server_arguments: list[str] = field(default_factory=list)
    mask_token_id: int | None = None

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Spec:
        """Read what `save` wrote."""
        return as_object(cls, json.loads(path.read_text(encoding="utf-8")))


def as_object(kind: type[T], values: dict[str, Any]) -> T:
    """A dataclass from the mapping that `dataclasses.asdict` makes of it, dataclasses in it too."""
    hints = typing.get_type_hints(kind)
    nested = {name for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    return kind(**{k: as_object(hints[k], v) if k in nested else v for k, v in values.items()})


def overrides_of(group: str, settings: Any, without: frozenset[str] = frozenset()) -> list[str]:
    """What to write on a command line to get `settings` (a dataclass) from its defaults: `group.key=value`."""
    found: list[str] = []
    default = type(settings)()
    for each in dataclasses.fields(settings):
        value, usual = getattr(settings, each.name), getattr(default, each.name)
        if value == usual or each.name in without:
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            found += overrides_of(f"{group}.{each.name}", value)
        else:
            found.append(f"{group}.{each.name}={written(value)}")
    return found


def written(value: object) -> str:
    """A value as Hydra's command line reads it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(written(v) for v in value) + "]"
    if isinstance(value, str):
        # A backslash is itself but before a quote, where it is doubled.
        return "'" + re.sub(r"(\\*)('|$)", lambda m: 2 * m[1] + ("\\'" if m[2] else ""), value) + "'"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def missing_setting(override: str) -> str | None:
    """The key of an override (`runtime.optimise.compaction=false`) if this version has no such setting."""
    key = override.partition("=")[0]
    group, _, rest = key.partition(".")
    kind: Any = {"runtime": EngineSettings, "sampling": SamplingSettings, "data": DataSettings}.get(group)
    for name in rest.split(".") if kind is not None else ():
        hints = typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
        if name not in hints:
            return key
        kind = hints[name]
    return None
