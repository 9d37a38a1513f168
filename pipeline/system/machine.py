"""Software versions, the machine, its free memory, and the cores that this process and its workers may use."""

from __future__ import annotations

import os
import platform
import resource
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import psutil

from pipeline import PACKAGES
from pipeline.api.numbers import MEMORY, Number
from pipeline.api.runtime import RunContext

NODES = Path("/sys/devices/system/node")
_PACKAGES = ("pyarrow", "numpy", "polars", "hydra-core", "llama-cpp-python")


@cache
def versions() -> Mapping[str, str]:
    """Return versions of Python, this project and the packages that results depend on; '' if not installed. Read
    once: it takes as long as a small run."""
    return {"python": platform.python_version(), "pipeline": _own_version()} | {p: _version(p) for p in _PACKAGES}


def machine() -> dict[str, str | int]:
    """Return the number of cores that this process may use, the platform and the CPU model."""
    return {"cores": len(own_cores()), "platform": platform.platform(), "cpu": _cpu_model()}


def free_memory() -> int:
    """Return the bytes that this process can still allocate: available memory, bounded by its cgroup's limit."""
    available: int = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # there is no cgroup, or its limit is `max`
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        available = min(available, limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return max(available, 0)


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had."""
    with suppress(OSError, ValueError, StopIteration):  # what getrusage tells counts the process that began this one
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def count_memory(context: RunContext) -> None:
    """Have a run show the most memory of this process."""
    about = "most memory of a process, of the run or of a worker"
    context.numbers["peak_memory_mb"] = Number(about, "MiB", MEMORY)
    context.totals.append(lambda: {"peak_memory_mb": peak_memory() / (1 << 20)})


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _own_version() -> str:
    try:
        project = tomllib.loads((PACKAGES / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):  # installed from a wheel
        return _version("llama-batch-pipeline")
    return str(project["version"])


@cache
def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def own_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def numa_nodes(folder: Path = NODES) -> dict[int, int]:
    """Return the NUMA node of each core, as Linux says it in `folder`; empty where it says nothing."""
    nodes: dict[int, int] = {}
    for path in folder.glob("node[0-9]*/cpulist"):
        for part in path.read_text(encoding="ascii").strip().split(","):
            first, _, last = part.partition("-")
            if first:
                nodes |= dict.fromkeys(range(int(first), int(last or first) + 1), int(path.parent.name[4:]))
    return nodes


def split_cores(cores: Sequence[int], each: int, workers: int, node_of: Mapping[int, int]) -> list[list[int]]:
    """Return `each` cores of its own for each of `workers` workers, all of one NUMA node if there is room for all like
    that; an empty list if there are not enough cores."""
    by_node: dict[int, list[int]] = defaultdict(list)
    for core in cores:
        by_node[node_of.get(core, 0)].append(core)
    for groups in ([by_node[node] for node in sorted(by_node)], [list(cores)]):
        parts = [group[i : i + each] for group in groups for i in range(0, len(group) - each + 1, each)]
        if len(parts) >= workers:
            return parts[:workers]
    return []
