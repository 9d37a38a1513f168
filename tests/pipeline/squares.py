"""The job of squares, which most tests of runs use: numbers, their squares, a Parquet sink. And what a run left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.api.errors import ExitCode
from pipeline.api.runtime import Resources
from pipeline.runs.run import run_job
from pipeline.settings import JobSettings, NodeSettings

OPS = "tests.pipeline.job_ops"


def job(
    directory: Path,
    rows: int = 45,
    square: dict[str, Any] | None = None,
    write: dict[str, Any] | None = None,
    **more: Any,
) -> JobSettings:
    """The job, in five chunks. `square`: arguments of Square, or another operator; `write`: another sink."""
    nodes = {
        "numbers": NodeSettings({"_target_": f"{OPS}.Numbers", "rows": rows}),
        "square": NodeSettings({"_target_": f"{OPS}.Square", **(square or {})}, "numbers"),
        "write": NodeSettings(write or {"_target_": f"{OPS}.Parquet"}, "square"),
    }
    return JobSettings(**{"name": "squares", "nodes": nodes, "output_dir": str(directory), "progress": "none", **more})


def breaks(folder: Path, row: int = 27) -> dict[str, Any]:
    """Arguments of Square: it fails at `row` while the file `broken` is in `folder`, which is made."""
    (folder / "broken").touch()
    return {"fail_at": row, "broken": str(folder / "broken")}


def run(settings: JobSettings) -> ExitCode:
    return run_job(settings, Resources())


def files(directory: Path) -> dict[str, bytes]:
    """Every file in data/ and rejects/, whatever its name."""
    found = [p for folder in ("data", "rejects") for p in (directory / folder).rglob("*") if p.is_file()]
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in found}


def column(directory: Path, name: str) -> list[int]:
    return [v for p in sorted((directory / "data").glob("*.parquet")) for v in pq.read_table(p)[name].to_pylist()]
