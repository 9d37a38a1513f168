"""How busy the cores are, and how much of that is other work: the kernel's own count."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class Ticks:
    """What all cores together have done since the machine was started, and what of it was ours.

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
    """The counts now; None where the kernel does not tell."""
    try:
        words = _STAT.read_text().split("\n", 1)[0].split()
        ticks_a_second = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    # user nice system idle iowait irq softirq steal; a guest's time is within user's
    counts = [int(word) for word in words[1:9]]
    used = os.times()
    idle, total = counts[3] + counts[4], sum(counts)
    return Ticks(total - idle, total, (used.user + used.system) * ticks_a_second)
