"""Workers and drivers are killed at random, fifty times in all: no row is lost, none is doubled, no byte changes."""

from __future__ import annotations

import random
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pipeline.api.errors import ExitCode
from tests.pipeline.cluster.cluster_runs import bytes_of
from tests.pipeline.cluster.processes import command, start, workers_of

ROWS = ("data.limit=200", "chunk_rows=32", "cluster=processes", "cluster.workers=2", "cluster.piece_rows=4")
KILLS = 10
LIMIT_S = 400.0


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    out: Path = tmp_path_factory.mktemp("alone") / "out"
    process = start(command("quickstart", out, "data.limit=200", "chunk_rows=32"))
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == ExitCode.DONE, said
    return out


def kill_one(process: subprocess.Popen[str], chance: random.Random) -> bool:
    """Kill a worker or, once in three times, the driver; return False if there was nothing to kill."""
    if process.poll() is not None:
        return False
    if chance.random() < 1 / 3:
        process.kill()
        return True
    with suppress(psutil.Error):
        if workers := workers_of(process):
            chance.choice(workers).kill()
            return True
    return False


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(5))
def test_random_kills_change_no_byte(seed: int, alone, tmp_path: Path) -> None:
    """A run that ends before all kills were made is followed by another one."""
    chance, kills, runs, code, until = random.Random(seed), 0, 0, None, time.monotonic() + LIMIT_S
    while kills < KILLS or code != ExitCode.DONE:
        out = tmp_path / f"out{runs}"
        process = start(command("quickstart", out, *ROWS))
        while process.poll() is None and kills < KILLS:
            time.sleep(chance.uniform(0.5, 4.0))
            kills += kill_one(process, chance)
        _, said = process.communicate(timeout=LIMIT_S)
        code = process.returncode
        if code == ExitCode.DONE:
            assert bytes_of(out) == bytes_of(alone)
            runs += 1
        else:
            too_many = code == ExitCode.FAILED and "workers end before they can begin" in said
            assert code == -9 or too_many, said
        assert time.monotonic() < until
