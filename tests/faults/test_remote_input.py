"""input from an object store: a run that reads it is stopped or killed, and resumes to the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.system.failpoints import VARIABLE
from tests.operators.sources.s3_server import SECRET, arguments, serving

ROWS = 60
pytestmark = [pytest.mark.faults, pytest.mark.slow("starts an object store and kills runs that read it")]


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    with serving(ROWS) as given:
        yield given


def data(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "data").iterdir()}


@pytest.mark.parametrize("signal", ["TERM", "KILL"])
@pytest.mark.parametrize("path", ["s3://prompts/parts/*.parquet", "s3://prompts/all.jsonl.gz"])
def test_a_run_that_is_stopped_resumes_to_the_same_bytes_and_keeps_no_secret(options, tmp_path, path, signal) -> None:
    command = [sys.executable, "-m", "pipeline", *arguments(options, path, tmp_path / "out", "max_open_chunks=1")]
    stopped = {**os.environ, VARIABLE: f"shard-renamed:3={signal}"}
    died = subprocess.run(command, cwd=PROJECT, env=stopped, capture_output=True, text=True, timeout=120)
    assert died.returncode == (ExitCode.INTERRUPTED if signal == "TERM" else -9), died.stderr
    assert 0 < len(data(tmp_path / "out")) < ROWS // 10
    assert main(command[3:]) == ExitCode.DONE
    assert main(arguments(options, path, tmp_path / "whole")) == ExitCode.DONE
    assert data(tmp_path / "out") == data(tmp_path / "whole")
    assert SECRET not in died.stderr + died.stdout
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert [p for p in files if SECRET.encode() in p.read_bytes()] == []
