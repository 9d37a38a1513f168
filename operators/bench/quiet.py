"""How busy the machine is before a case: what others compute makes a measurement worthless."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_WATCH_S = 0.5
NOISY = 0.1
"""Share of all cores from which a warning is due."""


def load_average() -> float | None:
    """Processes that wanted to run, on average over the last minute (our own earlier cases too); None if unknown."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def busy_share(watch_s: float = _WATCH_S) -> float | None:
    """Share of all cores that is busy now, watched for `watch_s` seconds; None where the kernel does not tell."""
    before = _ticks()
    if before is None:
        return None
    time.sleep(watch_s)
    after = _ticks()
    if after is None:
        return None
    idle, total = (a - b for a, b in zip(after, before, strict=True))
    return 1 - idle / total if total else 0.0


def _ticks() -> tuple[int, int] | None:
    """(idle, all) ticks of all cores since the machine was started."""
    try:
        words = _STAT.read_text().split("\n", 1)[0].split()
    except OSError:
        return None
    ticks = [int(word) for word in words[1:9]]
    return ticks[3] + ticks[4], sum(ticks)
