"""Runs of shipped jobs with and without workers, and their bytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.cli.main import main

SMALL = ("data.limit=40", "sampling.max_tokens=24", "runtime.slots=4", "runtime.threads=1", "progress=none")
ROUNDS = ("data.limit=8", "target.accepted_rows=12", "target.chunk_rows=6")
"""Three rounds and a half over the seeds of self_instruct."""


def run(job: str, directory: Path, *arguments: str) -> int:
    """Run a job in this process; return its exit code."""
    return main((f"job={job}", f"output_dir={directory}", *SMALL, *arguments))


def bytes_of(directory: Path) -> dict[str, str]:
    """SHA-256 of every file of results, by its path below `directory`, and what manifest.json says of the shards."""
    files = [path for folder in ("data", "rejects") for path in (directory / folder).rglob("*") if path.is_file()]
    files += list(directory.glob("*.jsonl"))
    found = {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}
    return found | {"shards": json.dumps(json.loads((directory / "manifest.json").read_text())["shards"])}


def assert_a_line_for_each_row(directory: Path, chunk_rows: int) -> None:
    """Of a run of one attempt, metrics/rows.parquet has each row of data/ once, with its chunk and its tokens."""
    lines = pq.read_table(directory / "metrics/rows.parquet").to_pylist()
    rows = pq.read_table(directory / "data").to_pylist()
    assert sorted((line["row"], line["chunk"], line["completion_tokens"]) for line in lines) == sorted(
        (row["row"], row["row"] // chunk_rows, row["completion_token_count"]) for row in rows
    )


def stages(directory: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(directory / "metrics/stages.parquet").to_pylist()
    return rows


def totals(directory: Path) -> dict[str, float]:
    """Totals of a run's last attempt."""
    found: dict[str, float] = json.loads(pq.read_table(directory / "metrics/run.parquet")["totals"][-1].as_py())
    return found
