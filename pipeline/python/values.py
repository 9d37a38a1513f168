"""Python values as a job file has them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.api.errors import ConfigError
from pipeline.config.keys import CONF
from pipeline.settings import GROUPS


def options_and_values(settings: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the options of config groups (`model: tiny`) and the values of keys (`model.path`) in `settings`."""
    chosen: dict[str, str] = {}
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key in (*GROUPS, "flow") and isinstance(value, str | Path):
            if (CONF / key / f"{value}.yaml").is_file():
                chosen[key] = str(value)
            elif key == "model":
                chosen[key], values["model.path"] = "gguf", str(value)
            else:
                options = sorted(path.stem for path in (CONF / key).glob("*.yaml"))
                raise ConfigError(f"{key}={value!r} is no option; there are {', '.join(options)}")
        elif key in GROUPS and isinstance(value, Mapping):
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
