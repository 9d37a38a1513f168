"""How busy the cores of this process are, and how much of that is other work: the kernel's own count."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
WINDOW_S = 5.0
MUCH = 0.3
"""Share of the cores that other work takes on average over a window: less than that may be a moment of something."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """What the cores together have done since the machine was started, and what of it was ours.

    Args:
        busy, total: clock ticks; what a hypervisor gave to other machines counts as busy.
        own: clock ticks that this process has computed.
    """

    busy: int
    total: int
    own: float

    def busy_since(self, before: Ticks) -> float:
        """Share of all cores that was busy since `before`."""
        total = self.total - before.total
        return (self.busy - before.busy) / total if total else 0.0

    def others_since(self, before: Ticks) -> float:
        """Share of all cores that other work took since `before`."""
        total = self.total - before.total
        others = self.busy - before.busy - (self.own - before.own)
        return min(max(others / total, 0.0), 1.0) if total else 0.0


def ticks() -> Ticks | None:
    """The counts now, of the cores that this process may use; None where the kernel does not tell."""
    try:
        usable = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        cores = [words for line in _STAT.read_text().splitlines() if (words := line.split())[:1] and words[0] in usable]
        ticks_a_second = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    if not cores:
        return None
    # user nice system idle iowait irq softirq steal; a guest's time is within user's
    counts = [sum(map(int, each)) for each in zip(*(words[1:9] for words in cores), strict=True)]
    used = os.times()
    idle, total = counts[3] + counts[4], sum(counts)
    return Ticks(total - idle, total, (used.user + used.system) * ticks_a_second)


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
        read: Callable[[], Ticks | None] = ticks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._warn, self._threads, self._read, self._clock = warn, threads, read, clock
        self._before, self._due = read(), clock() + WINDOW_S
        self._done = threads < 2  # one thread waits for no other

    def look(self) -> str:
        """Look, if it is time; called several times a second, as a status that never says anything."""
        if self._done or self._clock() < self._due:
            return ""
        now, before = self._read(), self._before
        share = 0.0 if now is None or before is None else now.others_since(before)
        self._before, self._due, self._done = now, self._clock() + WINDOW_S, share > MUCH
        if self._done:
            self._warn(
                f"other work takes {share:.0%} of the cores: the {self._threads} threads of a step wait for the"
                " slowest, so this run may be many times slower than alone. End the other work, or give the run fewer"
                f" threads than cores (runtime.threads={max(1, int(self._threads * (1 - share)))})"
            )
        return ""
