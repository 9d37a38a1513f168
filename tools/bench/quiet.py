"""How busy the machine is before a case: what others compute makes a measurement worthless."""

from __future__ import annotations

import os

import psutil

_WATCH_S = 0.5
NOISY = 0.1
"""Share of all cores from which a warning is due."""


def load_average() -> float | None:
    """Processes that wanted to run, on average over the last minute (our own earlier cases too); None if unknown."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def busy_share(watch_s: float = _WATCH_S) -> float:
    """Share of all cores that is busy now, watched for `watch_s` seconds."""
    return psutil.cpu_percent(watch_s) / 100
