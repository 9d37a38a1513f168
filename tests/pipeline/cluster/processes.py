"""Runs in a process of their own, whose workers can be found and killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow.parquet as pq

from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from tests.pipeline.cluster.cluster_runs import SMALL

LIMIT_S = 240.0
OPS = "tests.pipeline.cluster.worker_ops"
WORKER, STORE = ("process_pool", "ray::PieceWorker"), ("ray::Desk",)
"""What the command lines of workers and of the store's actor have."""


def job_with(folder: Path, function: str, *arguments: str) -> str:
    """Write a job that calls `function` of worker_ops for each row, behind the model; return its path."""
    path = folder / f"{function}.yaml"
    given = f"\n      arguments: {{{', '.join(arguments)}}}" if arguments else ""
    path.write_text(f"""
defaults:
  - override /flow: generate
  - override /model: fake
data: {{path: "${{project:jobs/data/quickstart.jsonl}}", id_column: id}}
nodes:
  trouble:
    inputs: generate
    op:
      _target_: operators.call.Call
      function: {OPS}.{function}{given}
  write: {{inputs: trouble}}
""")
    return str(path)


def command(job: str, directory: Path, *arguments: str) -> list[str]:
    """The command line of a run."""
    own = (f"job={job}", f"output_dir={directory}", "report=false")
    return [sys.executable, "-m", "pipeline", *own, *SMALL, *arguments]


def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """Start a run; its working directory is the project, so that it finds the operators of tests."""
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    return subprocess.Popen(arguments, cwd=PROJECT, env=environment, stderr=subprocess.PIPE, text=True)


def finished(arguments: Sequence[str]) -> tuple[int, str]:
    """Run to the end; return the exit code and what it wrote to stderr."""
    process = start(arguments)
    _, said = process.communicate(timeout=LIMIT_S)
    return process.returncode, said


def assert_poison_is_rejected(folder: Path, *cluster: str) -> None:
    """Rows that end every worker are rejected with the reason; all others are those of a run in which nothing ends."""
    few = ("data.limit=12", "max_error_rate=0.5")
    code, said = finished(command(job_with(folder, "poison"), folder / "out", *cluster, *few))
    assert code == ExitCode.DONE, said
    code, said = finished(command(job_with(folder, "slow"), folder / "alone", *few))
    assert code == ExitCode.DONE, said
    rows = pq.read_table(folder / "alone/data").to_pylist()
    guilty = {row["row"] for row in rows if "hare" in row["prompt"]}
    assert guilty
    rejects = pq.read_table(folder / "out/rejects").to_pylist()
    assert {reject["row"] for reject in rejects} == guilty
    told = r"it ended \d+ workers, 2 of which computed nothing else; the last one, \d+\.\d+: .+"
    assert all(re.search(told, reject["reason"]) for reject in rejects)
    assert pq.read_table(folder / "out/data").to_pylist() == [row for row in rows if row["row"] not in guilty]


def workers_of(process: subprocess.Popen[str] | psutil.Process, kinds: Sequence[str] = WORKER) -> list[psutil.Process]:
    """The workers below a process that are there now, or other processes of `kinds`."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if any(kind in part for part in child.cmdline() for kind in kinds):
                    found.append(child)
    return found


def wait_for_workers(process: subprocess.Popen[str], count: int) -> list[psutil.Process]:
    """Wait until a run has `count` workers."""
    until = time.monotonic() + LIMIT_S
    while len(found := workers_of(process)) < count:
        assert process.poll() is None, "the run ended before"
        assert time.monotonic() < until
        time.sleep(0.02)
    return found
