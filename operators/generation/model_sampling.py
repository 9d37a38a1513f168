"""The sampling values that the file of a model asks for (GGUF keys general.sampling.*), for `sampling=model`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from operators.engine.backend.loading import inspect_model
from operators.settings import ModelSettings, SamplingSettings
from operators.settings.sampling import STEP_ORDER
from pipeline.api.errors import ConfigError, InputError

PREFIX = "general.sampling."
_STEPS = {step.replace("_", ""): step for step in STEP_ORDER} | {
    "typp": "typical_p",
    "typ": "typical_p",
    "nucleus": "top_p",
    "temp": "temperature",
}
"""The steps by their names in llama.cpp, without _ and -."""


def of_model(key: str, default: Any, settings: ModelSettings) -> Any:
    """Return the value that the file of a model asks for, for a `key` of `sampling`; `default` if it does not say, or
    cannot be read, as the plan of the job will tell. Raises ConfigError if it asks for no value at all, or for one that
    is none."""
    try:
        in_file = inspect_model(settings).sampling
    except (ConfigError, InputError):
        return default
    asked = values_of(in_file)
    if not asked:
        raise ConfigError(
            f"sampling=model takes the values that the model's file asks for, and it has none ({PREFIX}*); give"
            " sampling=default, or values as its card has them"
        )
    return asked.get(key, default)


def values_of(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that a file asks for, by key of `sampling`. `given`: by llama.cpp's names; others are left out.
    Raises ConfigError if one is none of its kind."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name in _READ:
            key, read = _READ[name]
            try:
                values[key] = read(text)
            except ValueError:
                raise ConfigError(
                    f"the model's file has {PREFIX}{name}={text}, which sampling.{key} cannot be"
                ) from None
    return values


def taken(given: Mapping[str, str], sampling: SamplingSettings) -> str | None:
    """Say what a file asks for, and where `sampling` has other values; None if it asks for nothing."""
    asked = values_of(given)
    own = {key: getattr(sampling, key) for key, value in asked.items() if getattr(sampling, key) != value}
    if not asked:
        return None
    others = f"; this job has {_listed(own)}" if own else ", as this job has it"
    return f"the model's file asks for {_listed(asked)} ({PREFIX}*){others}"


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _count(text: str) -> int:
    return int(float(text))


def _order(text: str) -> list[str]:
    names = [re.sub("[-_]", "", name.strip().lower()) for name in text.split(";")]
    if unknown := set(names) - _STEPS.keys() - {""}:
        raise ValueError(unknown)
    return [_STEPS[name] for name in names if name]


_READ: dict[str, tuple[str, Callable[[str], Any]]] = {
    "sequence": ("order", _order),
    "temp": ("temperature", lambda text: max(float(text), 0.0)),
    "top_k": ("top_k", lambda text: max(_count(text), 0)),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "xtc_probability": ("xtc_probability", float),
    "xtc_threshold": ("xtc_threshold", float),
    "penalty_last_n": ("penalty_last_n", lambda text: None if (count := _count(text)) < 0 else count),
    "penalty_repeat": ("repetition_penalty", float),
    "mirostat": ("mirostat", _count),
    "mirostat_tau": ("mirostat_tau", float),
    "mirostat_eta": ("mirostat_eta", float),
}
"""The keys that llama.cpp reads, each with that of `sampling`. Below 0 its top_k is off, and its window all."""
