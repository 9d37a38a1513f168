"""The processor's cores that this process may use, and which of them workers of this machine get."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

NODES = Path("/sys/devices/system/node")


def own_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def numa_nodes(folder: Path = NODES) -> dict[int, int]:
    """Return the NUMA node of each core, as Linux says it in `folder`; empty where it says nothing."""
    found: dict[int, int] = {}
    for path in folder.glob("node[0-9]*/cpulist"):
        for part in path.read_text(encoding="ascii").strip().split(","):
            first, _, last = part.partition("-")
            if first:
                found |= dict.fromkeys(range(int(first), int(last or first) + 1), int(path.parent.name[4:]))
    return found


def split_cores(cores: Sequence[int], each: int, workers: int, node_of: Mapping[int, int]) -> list[list[int]]:
    """Return `each` cores of its own for each of `workers` workers, all of one NUMA node if there is room for all like
    that; an empty list if there are not enough cores."""
    by_node: dict[int, list[int]] = defaultdict(list)
    for core in cores:
        by_node[node_of.get(core, 0)].append(core)
    for groups in ([by_node[node] for node in sorted(by_node)], [list(cores)]):
        parts = [own[i : i + each] for own in groups for i in range(0, len(own) - each + 1, each)]
        if len(parts) >= workers:
            return parts[:workers]
    return []
