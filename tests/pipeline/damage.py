"""A finished run to damage, ways to damage it, and what to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.api.errors import ExitCode
from pipeline.api.runtime import Resources
from pipeline.runs.job import run_job
from pipeline.settings import JobSettings, NodeSettings

OPS = "tests.pipeline.job_ops"
ODD, LAST = "data/part-00002.parquet", "data/part-00004.parquet"
REJECT = "rejects/part-00004.parquet"


def job(directory: Path, square: dict[str, Any] | None = None, **settings: Any) -> JobSettings:
    nodes = {
        "numbers": NodeSettings({"_target_": f"{OPS}.Numbers", "rows": 45}),
        "square": NodeSettings({"_target_": f"{OPS}.Square", "bad": [4, 41], **(square or {})}, "numbers"),
        "write": NodeSettings({"_target_": f"{OPS}.Parquet"}, "square"),
    }
    return JobSettings(
        name="squares", nodes=nodes, output_dir=str(directory), progress="none", max_error_rate=1.0, **settings
    )


def run(settings: JobSettings) -> ExitCode:
    return run_job(settings, Resources())


def files(directory: Path) -> dict[str, bytes]:
    found = [p for folder in ("data", "rejects") for p in (directory / folder).rglob("*") if p.is_file()]
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in found}


def inodes(directory: Path) -> dict[str, int]:
    return {name: (directory / name).stat().st_ino for name in files(directory)}


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)


def garbage(path: Path) -> None:
    path.write_bytes(b"these are not the bytes of a database" * 300)


def empty(path: Path) -> None:
    path.write_bytes(b"")
