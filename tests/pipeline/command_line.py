"""A job file of squares in a directory of its own, and command lines that are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main

OPS = "tests.pipeline.job_ops"
NODES = f"""
nodes:
  numbers:
    op: {{_target_: {OPS}.Numbers, rows: 25, chunk_rows: "${{chunk_rows}}"}}
  square:
    inputs: numbers
    op: {{_target_: {OPS}.Square, add: 0, bad: "${{sampling.stop_token_ids}}"}}
  write:
    inputs: square
    op: {{_target_: {OPS}.Parquet}}
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Every test starts in a directory of its own, with a job file of squares."""
    monkeypatch.chdir(tmp_path)
    write_job("squares", "# Squares of numbers.\nchunk_rows: 10\nprogress: none\n" + NODES)
    return tmp_path


def write_job(name: str, text: str) -> None:
    Path(f"{name}.yaml").write_text(text)


def refused(capsys, *arguments: str) -> str:
    """The message of a command line that ends with exit code 2."""
    assert main(arguments) == ExitCode.CONFIG
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
    return shown.err


def command(*arguments: str) -> list[str]:
    """A command line of the pipeline, for a process of its own."""
    return [sys.executable, "-m", "pipeline", *arguments]


def ended(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in `folder` to its end; it finds this project, wherever that is."""
    env = {**os.environ, "PYTHONPATH": str(PROJECT), **environment}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)


def in_process(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in a process of its own, in `folder`."""
    return ended(folder, *command(*arguments), **environment)
