"""Free memory."""

from __future__ import annotations

from pathlib import Path

_UNKNOWN = 4 << 30
"""Bytes that count as free where the system does not say."""


def free_memory() -> int:
    """Return the bytes that this process may still take: of the machine, or of the control group that it is in."""
    available = _UNKNOWN
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) << 10
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if limit != "max":
            available = min(available, int(limit) - used)
    except (OSError, ValueError):
        pass
    return max(available, 0)
