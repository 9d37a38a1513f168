"""Measure the CPU load of other processes while this one computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import psutil

NOISY = 0.15
"""Share of the cores that other processes may use while something is measured."""


def cpu_seconds() -> Sequence[float]:
    """Return the busy and the total seconds of this process's cores since boot (time stolen by a hypervisor is busy),
    and the CPU seconds of this process and of its children that have ended."""
    cores = psutil.cpu_times(percpu=True)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(cores))
    times = [cores[core]._asdict() for core in usable]
    # The time of guests is part of user time.
    total = sum(seconds for each in times for key, seconds in each.items() if not key.startswith("guest"))
    idle = sum(each["idle"] + each.get("iowait", 0.0) for each in times)
    return total - idle, total, sum(os.times()[:4])


class OtherWork:
    """Measures the CPU time of other processes since it was made."""

    def __init__(self, read: Callable[[], Sequence[float]] = cpu_seconds) -> None:
        self._read = read
        self._before = read()

    def share(self) -> float:
        """Return the share of the cores that other processes used, 0 to 1."""
        busy, total, own = (now - before for now, before in zip(self._read(), self._before, strict=True))
        return min(max((busy - own) / total, 0.0), 1.0) if total else 0.0
