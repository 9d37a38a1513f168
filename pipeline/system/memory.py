"""Free memory of the machine."""

from __future__ import annotations

from pathlib import Path

_UNKNOWN = 4 << 30
"""Free bytes assumed where /proc/meminfo does not exist."""


def free_memory() -> int:
    """Return the bytes that this process can still allocate: free memory, bounded by its cgroup's limit."""
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
