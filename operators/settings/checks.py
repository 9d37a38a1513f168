"""Checks of the config groups, and the mark for fields that cannot change a result."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipeline.api.errors import ConfigError, InputError
from pipeline.api.removed import removed

NOT_IN_DATA: Mapping[str, Any] = {"fingerprint": False}
"""Metadata of a field that may change between two attempts of a run, since it cannot change a byte of data/."""

WHEN_GIVEN: Mapping[str, Any] = {"fingerprint": "given"}
"""Metadata of a field that is in the fingerprint only where it is given: its default changes nothing."""


def check(holds: bool, key: str, value: object, allowed: str) -> None:
    """Raise ConfigError with `key`, its `value` and what is `allowed`, unless `holds`."""
    if not holds:
        if gone := removed(f"{key}={value}"):
            raise ConfigError(gone)
        quotes = "; yes, no, on, off, true and false are texts only in quotes" if _has_boolean(value) else ""
        raise ConfigError(f"{key}={value!r} cannot work: {allowed}{quotes}")


def check_one_of(key: str, value: object, allowed: Collection[str]) -> None:
    """Raise ConfigError with `key` and `value`, unless the value is among `allowed`."""
    check(value in allowed, key, value, f"it is one of {', '.join(allowed)}")


def _has_boolean(value: object) -> bool:
    """Return True if a list or mapping has a boolean: YAML reads words like `no` as one."""
    inside = [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    return any(isinstance(v, bool) for v in inside)


def read_text(path: str, key: str) -> str:
    """Return the text of the file that the setting `key` names.

    Raises:
        InputError: it cannot be read, or is no text in UTF-8.
    """
    where = Path(path).expanduser()
    try:
        if where.exists() and not where.is_file():
            raise InputError(f"{key}={path} is no regular file; give the path of a text file")
        return where.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{key}={path} is not a text file in UTF-8") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{key}={path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
