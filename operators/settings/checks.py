"""Checks of the values of config groups and of operators' arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from pipeline.api.errors import InputError
from pipeline.api.keys import check as check

SIZE = "a number of bytes, or one with a unit (8GiB, 500MiB, 8GB)"
_UNITS = {"": 1, "b": 1, "mb": 10**6, "gb": 10**9, "tb": 10**12, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(|b|[mgt]i?b)\s*", re.IGNORECASE)


def parse_size(text: object) -> int | None:
    """Return the bytes that a text such as "8GiB" means; None if it is no SIZE."""
    match = _BYTES.fullmatch(str(text))
    return None if match is None else int(float(match[1]) * _UNITS[match[2].lower()])


def check_one_of(key: str, value: object, allowed: Collection[str]) -> None:
    """Raise ConfigError with `key` and `value`, unless the value is among `allowed`."""
    check(value in allowed, key, value, f"it is one of {', '.join(allowed)}")


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
