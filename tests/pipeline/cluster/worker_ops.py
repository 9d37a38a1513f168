"""What rows can do to a worker: end it, hang it, raise."""

from __future__ import annotations

import os
import signal
import time
from typing import Any


def poison(row: dict[str, Any]) -> dict[str, Any]:
    """End the process on a row that says so."""
    if "hare" in row["prompt"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


def fails(row: dict[str, Any]) -> dict[str, Any]:
    """Raise on a row."""
    if row["row"] == 17:
        raise ValueError("no such luck")
    return {}


def hangs_once(row: dict[str, Any], flag: str) -> dict[str, Any]:
    """Hang on a row, in the first worker that has it."""
    if row["row"] == 17:
        try:
            os.mkdir(flag)  # noqa: PTH102
        except FileExistsError:
            return {}
        time.sleep(600)
    return {}


def slow(row: dict[str, Any]) -> dict[str, Any]:
    """Take a while."""
    time.sleep(0.05)
    return {}
