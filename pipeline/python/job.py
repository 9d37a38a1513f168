"""Job: a job that is built in Python, instead of a YAML file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.api.errors import ConfigError
from pipeline.config.annotations import marked
from pipeline.config.build import TARGET
from pipeline.config.keys import options
from pipeline.settings import GROUPS, WITH_OPTIONS
from pipeline.system.redaction import secret_places
from pipeline.system.yaml_text import write_yaml


class Job:
    """A job with steps and nodes, the same as the file that `save` writes: with the same fingerprint and results.

    Args:
        name: of the job.
        settings: by key, as of `run`; the value of a config group may be the name of an option.
        groups: the same as keywords: `model="tiny", sampling={"temperature": 0.7}`.

    Raises:
        ConfigError: a value is nothing that a job file can hold.

    Example:
        >>> from pipeline import Job, run
        >>> job = Job("capitals", model="tiny", sampling={"max_tokens": 8})
        >>> job = job.step("answer", prompt="Reverse these items: {{ a }}, {{ b }}")
        >>> result = run(job, rows=[{"a": "pear", "b": "fig"}], progress="none")
        >>> result.rows().collect().columns[:3]
        ['a', 'b', 'row']
    """

    def __init__(self, name: str, settings: Mapping[str, Any] | None = None, **groups: Any) -> None:
        self.name = name
        self._chosen, self._values = options_and_values({**(settings or {}), **groups})
        self._steps: dict[str, Any] = {}
        self._nodes: dict[str, Any] = {}

    def step(self, name: str, **keys: Any) -> Job:
        """Add a step, which asks the model something about each row. Returns the job.

        Args:
            name: of the step, and of the column that it adds.
            keys: those of a step (docs/steps.md).
        """
        self._refuse_twice(name)
        self._steps[name] = plain_value(keys)
        return self

    def node(
        self, name: str, op: type | str, inputs: str | Iterable[str] = (), *, on_error: str = "fail", **arguments: Any
    ) -> Job:
        """Add a node of the graph. Returns the job.

        Args:
            op: the operator, as its class or as `module.Class`.
            inputs: the node or nodes that it reads; none for the source.
            on_error: fail, reject or keep (docs/steps.md).
            arguments: of the operator. A text like "${model}" takes a config group of the job; what is named like a
                group is filled in.
        """
        self._refuse_twice(name)
        target = op if isinstance(op, str) else name_of(op)
        read = [inputs] if isinstance(inputs, str) else list(inputs)
        self._nodes[name] = {"inputs": read, "on_error": on_error, "op": {TARGET: target, **plain_value(arguments)}}
        return self

    def to_yaml(self) -> str:
        """Return the job file."""
        defaults = [{f"override /{group}": option} for group, option in self._chosen.items()]
        content: dict[str, Any] = {"defaults": defaults} if defaults else {}
        content["name"] = self.name
        for key, value in self._values.items():
            inner = content
            *above, last = key.split(".")
            for part in above:
                inner = inner.setdefault(part, {})
            inner[last] = plain_value(value)
        content |= {key: named for key, named in (("steps", self._steps), ("nodes", self._nodes)) if named}
        return write_yaml(content)

    def save(self, path: str | Path) -> Path:
        """Write the job file, which `python -m pipeline job=PATH` runs. Returns its path.

        Raises:
            ConfigError: the job has a function or a class of a notebook or a script, which no other process can find,
                or a secret as it is.
        """
        where = Path(path)
        if lost := next(of_main([self._steps, self._nodes, self._values]), None):
            raise ConfigError(
                f"a job file cannot name {lost}: only this notebook or script has it; put it into a module, such as a"
                f" file beside {where}, and import it from there"
            )
        values = {"steps": self._steps, "nodes": self._nodes, **self._values}
        if key := next(secret_places(values, marked=marked(self._nodes)), None):
            raise ConfigError(
                f"{key} is a secret, and a job file keeps none: give ${{secret:NAME}}, and set the environment variable"
                " NAME"
            )
        where.write_text(self.to_yaml(), encoding="utf-8")
        return where

    def _refuse_twice(self, name: str) -> None:
        if name in self._steps or name in self._nodes:
            raise ConfigError(f"the job {self.name} has '{name}' already; give another name")


def options_and_values(settings: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the options of config groups (`model: tiny`) and the values of keys (`model.path`) in `settings`."""
    chosen: dict[str, str] = {}
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key in WITH_OPTIONS and isinstance(value, str | Path):
            if str(value) in options()[key]:
                chosen[key] = str(value)
            elif key == "model":
                chosen[key], values["model.path"] = "gguf", str(value)
            else:
                raise ConfigError(f"{key}={value!r} is no option; there are {', '.join(options()[key])}")
        elif key in (*GROUPS, "cluster") and isinstance(value, Mapping):
            if key == "cluster" and isinstance(pool := value.get("pool"), str):  # its options are called so
                chosen |= options_and_values({key: pool})[0]
            values |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            values[key] = value
    return chosen, values


def plain_value(value: Any) -> Any:
    """Return a value as YAML has it: mappings, lists, texts, numbers, booleans, null."""
    if isinstance(value, Mapping):
        return {key: plain_value(inner) for key, inner in value.items()}
    if isinstance(value, str | bool | int | float | None):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_value(inner) for inner in value]
    if callable(value):
        return name_of(value)
    if hasattr(value, "item"):  # a number of numpy
        return value.item()
    raise ConfigError(f"{value!r} ({type(value).__name__}) is nothing that a job file can hold")


def name_of(value: Any) -> str:
    """Return the name `module.name` under which a class or a function is found again."""
    name = getattr(value, "__qualname__", "")
    if not name or "<" in name or "." in name:
        raise ConfigError(f"{value!r} cannot be found by a name; define it at the top of a module")
    if getattr(sys.modules.get(value.__module__), name, None) is not value:
        raise ConfigError(f"{value!r} is not what {value.__module__}.{name} is now; give the one that has this name")
    return f"{value.__module__}.{name}"


def of_main(value: Any) -> Iterator[str]:
    """Yield the functions and classes of `__main__` that a plain value names."""
    if isinstance(value, str):
        module, _, name = value.replace(":", ".").rpartition(".")
        if module == "__main__" and callable(getattr(sys.modules["__main__"], name, None)):
            yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from of_main(inner)
