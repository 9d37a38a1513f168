"""Workers and what they need are killed at random, fifty times in processes and fifty times on Ray: no row is lost,
none is doubled, no byte changes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from operators.generation.remote_store import RemoteStore
from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from tests.faults.hooks import TOKENS, WATCHED
from tests.faults.matrix import Case
from tests.faults.results import lost_and_doubled
from tests.faults.test_kill import tokens_in
from tests.pipeline.cluster.cluster_runs import bytes_of, run
from tests.pipeline.cluster.processes import STORE, WORKER, command, start, workers_of
from tests.pipeline.cluster.ray_nodes import ray_nodes

pytestmark = pytest.mark.slow("kills workers and Ray nodes of whole jobs")

RAY = ("cluster=ray", "cluster.cpus=0.5", "+cluster.resources.dev=1")
CLUSTERS = {"processes": ("cluster=processes",), "Ray": RAY}
KILLED = {"processes": ("worker", "worker", "driver"), "Ray": ("worker", "worker", "store", "node", "driver")}
SEEDS, KILLS = range(5), 10
SIZES = {0: (2000, 250)}
"""Rows and rows of a chunk of a seed, where they are not USUAL."""
USUAL = (200, 16)
WORKERS, SLOTS, MAX_TOKENS = 2, 4, 24
BOUND = (WORKERS * SLOTS + RemoteStore.flush_rows) * MAX_TOKENS
"""Tokens that a kill may cost: those in the slots, and the finished rows that wait to be journaled."""
LIMIT_S = 900.0


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Iterator[Path]:
    """A folder in which each process that computes has a counter of the tokens that it draws."""
    folder: Path = tmp_path_factory.mktemp("tokens")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(TOKENS, str(folder))
        yield folder


@pytest.fixture(scope="module")
def nodes(tokens) -> Iterator[Any]:
    with ray_nodes() as cluster:
        yield cluster


class Killer:
    """Kills what a run needs. `nodes`: the Ray cluster, of which one node is for workers; None for processes."""

    def __init__(self, nodes: Any, chance: random.Random) -> None:
        self._nodes, self._chance = nodes, chance
        self._add_node()

    def kill(self, what: str, process: subprocess.Popen[str]) -> bool:
        """Return True if there was such a thing, and the run was there to see it end."""
        if process.poll() is not None:
            return False
        if what == "driver":
            process.kill()
            return process.wait() == -signal.SIGKILL
        victims = workers_of(psutil.Process(), STORE if what == "store" else WORKER)
        if not victims:
            return False
        if what == "node":
            self.remove_node()
            self._add_node()
        else:
            with suppress(psutil.Error):
                self._chance.choice(victims).kill()
        return process.poll() is None

    def remove_node(self) -> None:
        if self._nodes is not None:
            self._nodes.remove_node(self._node, allow_graceful=False)

    def _add_node(self) -> None:
        if self._nodes is not None:
            self._node = self._nodes.add_node(num_cpus=2, resources={"dev": WORKERS})


def prompts(path: Path, rows: int) -> Path:
    """Rows of the shipped file, no two the same."""
    shipped = map(json.loads, cycle((PROJECT / "jobs/data/quickstart.jsonl").read_text().splitlines()))
    lines = [row | {"id": f"{i}", "prompt": f"{row['prompt']} {i}"} for i, row in enumerate(islice(shipped, rows))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def drawn(tokens: Path) -> int:
    """Tokens of all processes until now."""
    return sum(int(n) for path in tokens.iterdir() for n in np.fromfile(path, np.int64))


@pytest.mark.faults
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_random_kills_change_no_byte(
    cluster: str, seed: int, tokens: Path, tmp_path: Path, matrix: Case, request
) -> None:
    """The same command goes on, and a run that ends before all kills were made is followed by another one."""
    matrix.fault = f"kill -9 of workers and what they need ({cluster})"
    nodes = request.getfixturevalue("nodes") if cluster == "Ray" else None
    rows, chunk_rows = SIZES.get(seed, USUAL)
    job = (f"data.path={prompts(tmp_path / 'prompts.jsonl', rows)}", f"data.limit={rows}", f"chunk_rows={chunk_rows}")
    assert run("quickstart", tmp_path / "alone", *job, *WATCHED) == ExitCode.DONE
    own = (*CLUSTERS[cluster], f"cluster.workers={WORKERS}", "cluster.piece_rows=8")
    address = (f"cluster.address={nodes.address}",) if nodes else ()
    chance, kills, runs, code = random.Random(seed), 0, 0, None
    killer, before, kept, until = Killer(nodes, chance), drawn(tokens), 0, time.monotonic() + LIMIT_S
    while kills < KILLS or code != ExitCode.DONE:
        out = tmp_path / f"out{runs}"
        process = start(command("quickstart", out, *job, *WATCHED, *own, *address))
        while process.poll() is None and kills < KILLS:
            time.sleep(chance.uniform(0.5, 3.0))
            what = chance.choice(KILLED[cluster])
            if killer.kill(what, process):
                kills += 1
                matrix.saw(**{f"kills_of_a_{what}": 1})
        _, said = process.communicate(timeout=LIMIT_S)
        code = process.returncode
        if code == ExitCode.DONE:
            assert bytes_of(out) == bytes_of(tmp_path / "alone")
            lost, doubled = lost_and_doubled(out, rows)
            assert (lost, doubled) == (0, 0)
            runs, kept = runs + 1, kept + tokens_in(out)
            matrix.saw(rows=rows, rows_lost=lost, rows_doubled=doubled)
        else:
            too_many = code == ExitCode.FAILED and "workers end before they can begin" in said
            assert too_many or code == -signal.SIGKILL, said
        assert time.monotonic() < until
    killer.remove_node()
    twice = drawn(tokens) - before - kept
    matrix.saw(tokens=kept, tokens_decoded_twice=twice)
    assert kills == KILLS
    assert 0 <= twice <= KILLS * BOUND
