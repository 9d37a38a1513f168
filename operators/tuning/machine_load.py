"""Measure the CPU load of other processes while this one computes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import psutil

WINDOW_S = 5.0
NOISY = 0.15
"""Share of the cores that other processes may use while something is measured."""
MUCH = 0.3
"""Average share of the cores over a window above which other work is reported."""


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


class SharedCores:
    """Warns once if other processes use much of the cores while `threads` of this one compute."""

    def __init__(
        self,
        warn: Callable[[str], None],
        threads: int,
        read: Callable[[], Sequence[float]] = cpu_seconds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._warn, self._threads, self._read, self._clock = warn, threads, read, clock
        self._others, self._due = OtherWork(read), clock() + WINDOW_S
        self._done = threads < 2  # a single thread waits for no other

    def look(self) -> str:
        """Warn if the window is over and other processes used much of the cores. Called several times a second as a
        status line, which is always empty."""
        if self._done or self._clock() < self._due:
            return ""
        share = self._others.share()
        self._others, self._due, self._done = OtherWork(self._read), self._clock() + WINDOW_S, share > MUCH
        if self._done:
            self._warn(
                f"other work takes {share:.0%} of the cores: the {self._threads} threads of a step wait for the"
                " slowest, so this run may be many times slower than alone. End the other work, or give the run fewer"
                f" threads than cores (runtime.threads={max(1, int(self._threads * (1 - share)))})"
            )
        return ""
