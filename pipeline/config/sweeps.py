"""Sweeps: the jobs that several values of a setting make, how each is typed, and where its results go."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf

from pipeline.config.explain import PARSER, for_hydra
from pipeline.settings import JobSettings

_NOT_OF_A_SWEEP = ("overwrite", "dry_run", "show", "progress", "output_dir", "output.publish", "output.storage_options")
_SAME_RESULTS = (
    *("max_error_rate", "on_finish", "other_bits", "output.card", "output.retries", "prometheus_file", "report"),
    *("target.max_tokens", "target.max_minutes", "target.max_cost"),
)
"""Keys that may change on a resume: they do not name the directory of a job of a sweep, unless they are swept."""


def overrides_given() -> tuple[str, ...]:
    """Return the overrides of the job being composed, as typed: interpolations are not resolved. None outside of
    Hydra."""
    if not HydraConfig.initialized():
        return ()
    overrides = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return tuple(map(str, overrides)) if isinstance(overrides, list) else ()


def in_sweep(settings: JobSettings) -> JobSettings:
    """Return the settings of a job of a sweep of the command line with a directory of its own."""
    hydra = HydraConfig.get() if HydraConfig.initialized() else None
    if hydra is None or hydra.mode != RunMode.MULTIRUN:
        return settings
    return dataclasses.replace(settings, output_dir=place_of(settings.directory, overrides_given(), _is_swept))


def place_of(directory: Path, overrides: Iterable[str], is_swept: Callable[[str], bool]) -> str:
    """Return the directory of a job of a sweep: that of the job, with a hash of its overrides. `is_swept`: whether the
    key of an override has several values."""
    named = sorted(o for o in overrides if not _is_of_one_run(o, is_swept))
    return f"{directory}-{hashlib.sha256(json.dumps(named).encode()).hexdigest()[:8]}"


def typed(key: str, value: Any) -> str:
    """Return the override that gives `value`, as plain values of YAML are, to `key`, in the form in which Hydra writes
    those of a sweep of the command line."""
    return f"{key}={Override._get_value_element_as_str(_element(value))}"


def key_and_value(override: str) -> tuple[str, Any]:
    """Return the key of an override, without `+`, and its value."""
    value = PARSER.parse_override(override).value()
    return override.partition("=")[0].lstrip("+"), str(value) if isinstance(value, QuotedString) else value


def _element(value: Any) -> Any:
    """Return a value as Hydra parses it: texts that would be another value, or none, without quotes have some."""
    if isinstance(value, Mapping):
        return {_element(key): _element(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_element(inner) for inner in value]
    if not isinstance(value, str):
        return value
    try:
        parsed = PARSER.parse_override(for_hydra(f"x={value}"))
        if value and not parsed.is_sweep_override() and parsed.value() == value:
            return parsed._value
    except HydraException:  # no override: it is a text
        pass
    return QuotedString(value, Quote.single)


def _is_of_one_run(override: str, is_swept: Callable[[str], bool]) -> bool:
    """Return True if the override does not belong in the directory name of a job of a sweep."""
    key = override.partition("=")[0]
    keys = _NOT_OF_A_SWEEP if is_swept(key) else _NOT_OF_A_SWEEP + _SAME_RESULTS
    name = key.lstrip("+")
    return any(name == each or name.startswith(f"{each}.") for each in keys)


def _is_swept(key: str) -> bool:
    """Return True if the key has several values on the command line, or is not there (the sweep is in the job file)."""
    arguments = [argument for argument in sys.argv[1:] if argument.partition("=")[0] == key]
    return not arguments or any(override.is_sweep_override() for override in PARSER.parse_overrides(arguments))
