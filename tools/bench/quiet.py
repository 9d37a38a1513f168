"""How busy the machine is before a case: what others compute makes a measurement worthless."""

from __future__ import annotations

import os
import time

from operators.tuning.machine_load import ticks

_WATCH_S = 0.5
NOISY = 0.1
"""Share of all cores from which a warning is due."""


def load_average() -> float | None:
    """Processes that wanted to run, on average over the last minute (our own earlier cases too); None if unknown."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def busy_share(watch_s: float = _WATCH_S) -> float | None:
    """Share of all cores that is busy now, watched for `watch_s` seconds; None where the kernel does not tell."""
    before = ticks()
    if before is None:
        return None
    time.sleep(watch_s)
    after = ticks()
    return None if after is None else after.busy_since(before)
