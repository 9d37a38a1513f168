"""How much of the cores other processes take while this one computes on them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import psutil

WINDOW_S = 5.0
MUCH = 0.3
"""Share of the cores that other work takes on average over a window: less than that may be a moment of something."""


def cpu_seconds() -> Sequence[float]:
    """Seconds that the cores this process may use were busy, and busy or idle, since the machine was started; and
    seconds that this process has computed. What a hypervisor gave to other machines counts as busy."""
    cores = psutil.cpu_times(percpu=True)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(cores))
    times = [cores[core]._asdict() for core in usable]
    # A guest's time is within user's.
    total = sum(seconds for each in times for key, seconds in each.items() if not key.startswith("guest"))
    idle = sum(each["idle"] + each.get("iowait", 0.0) for each in times)
    return total - idle, total, time.process_time()


class OtherWork:
    """Measures what other processes compute, beginning when it is made.

    Args:
        read: gives what `cpu_seconds` gives.
    """

    def __init__(self, read: Callable[[], Sequence[float]] = cpu_seconds) -> None:
        self._read = read
        self._before = read()

    def share(self) -> float:
        """The share of the cores that other processes have taken since then, 0 to 1."""
        busy, total, own = (now - before for now, before in zip(self._read(), self._before, strict=True))
        return min(max((busy - own) / total, 0.0), 1.0) if total else 0.0


class SharedCores:
    """Notices that other work takes much of the cores while this process computes on them, and says so once.

    Args:
        warn: told what to say.
        threads: that compute.
        read, clock: for tests.
    """

    def __init__(
        self,
        warn: Callable[[str], None],
        threads: int,
        read: Callable[[], Sequence[float]] = cpu_seconds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._warn, self._threads, self._read, self._clock = warn, threads, read, clock
        self._others, self._due = OtherWork(read), clock() + WINDOW_S
        self._done = threads < 2  # one thread waits for no other

    def look(self) -> str:
        """Look, if it is time; called several times a second, as a status that never says anything."""
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
