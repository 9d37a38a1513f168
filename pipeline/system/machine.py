"""Software versions, machine and free memory, and the schema of metrics/run.parquet, which records the first two."""

from __future__ import annotations

import os
import platform
import tomllib
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import psutil
import pyarrow as pa

from pipeline import PACKAGES

RUN_SCHEMA = pa.schema(
    [
        pa.field("job", pa.string()),
        pa.field("state", pa.string()),
        pa.field("exit_code", pa.int32()),
        pa.field("started_at", pa.string()),
        pa.field("wall_s", pa.float64()),
        pa.field("rows", pa.int64()),
        pa.field("rejects_error", pa.int64()),
        pa.field("rejects_filtered", pa.int64()),
        pa.field("tokens_in", pa.int64()),
        pa.field("tokens_out", pa.int64()),
        pa.field("tokens_per_s", pa.float64()),
        pa.field("versions", pa.string()),
        pa.field("machine", pa.string()),
        pa.field("fingerprint", pa.string()),
        pa.field("totals", pa.string()),
    ]
)
"""One row per attempt, with the column `attempt` put first. Counts are of the attempt; `rows`: source rows that it
committed; `tokens_per_s`: completion tokens; versions, machine and totals are JSON objects."""

_PACKAGES = ("pyarrow", "numpy", "polars", "hydra-core", "llama-cpp-python")


def versions() -> dict[str, str]:
    """Return versions of Python, this project and the packages that results depend on; '' if not installed."""
    return {"python": platform.python_version(), "pipeline": _own_version()} | {p: _version(p) for p in _PACKAGES}


def machine() -> dict[str, str | int]:
    """Return the number of cores that this process may use, the platform and the CPU model."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"cores": cores, "platform": platform.platform(), "cpu": _cpu_model()}


def free_memory() -> int:
    """Return the bytes that this process can still allocate: available memory, bounded by its cgroup's limit."""
    available: int = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # there is no cgroup, or its limit is `max`
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        available = min(available, limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return max(available, 0)


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


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
