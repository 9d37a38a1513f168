"""The names of splits, which are names in `datasets` and parts of the names of files."""

from __future__ import annotations

import re
from collections.abc import Iterable

NAMES = "letters, digits and _, and not `all`, which names all splits together"
_NAME = re.compile(r"[A-Za-z0-9_]+")


def is_split_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name != "all"


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names that differ in case alone, which would be one file on some disks; None if there are none."""
    seen: dict[str, str] = {}
    return next(((other, n) for n in names if (other := seen.setdefault(n.lower(), n)) != n), None)
