"""Model files that are well formed and have wrong values: a run ends with a documented code, and by no signal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pipeline import PROJECT

pytestmark = [pytest.mark.faults, pytest.mark.slow("runs jobs on 2,000 models")]
MUTANTS, CHUNK = 2000, 125


@pytest.mark.parametrize("first", range(0, MUTANTS, CHUNK))
def test_no_value_ends_the_process(first, matrix, tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_PIPELINE_CACHE", str(tmp_path))
    changes = 1 + first // CHUNK % 2
    command = [sys.executable, "-m", "tests.faults.mutants", str(first), str(CHUNK), str(changes)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    matrix.saw(mutants=CHUNK)
