"""Workers as actors of Ray: the same bytes, whatever ends on the way. One cluster of this machine serves all tests."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from pipeline.api.errors import ExitCode
from pipeline.cluster.pool import WorkerLost
from tests.pipeline.cluster.cluster_runs import bytes_of, run
from tests.pipeline.cluster.processes import (
    WORKER,
    assert_poison_is_rejected,
    command,
    job_with,
    start,
    workers_of,
)
from tests.pipeline.cluster.ray_nodes import ray_nodes

pytestmark = pytest.mark.slow("starts Ray")

ray: Any = pytest.importorskip("ray", reason="the extra `ray` is not installed")
RAY = ("cluster=ray", "cluster.workers=2", "cluster.piece_rows=5", "cluster.cpus=0.5", "chunk_rows=16")
LEAVES_S = 10.0


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with ray_nodes() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The results of quickstart without workers."""
    out: Path = tmp_path_factory.mktemp("alone") / "out"
    assert run("quickstart", out, "chunk_rows=16") == ExitCode.DONE
    return out


def actors(kinds: Sequence[str] = WORKER) -> list[psutil.Process]:
    """Actors of the clusters that this process has started."""
    return workers_of(psutil.Process(), kinds)


DIED = "The actor died unexpectedly before finishing this task.\n\tpid: 7\n\tip: 10.77.0.2\nThe node was lost."
NO_MEMORY = (
    "Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.77.0.2, ID: ab) was 9GB."
)


@pytest.mark.parametrize(
    ("found", "why", "host"),
    [
        (ray.exceptions.RayError(DIED), "finishing this task. The node was lost.", "10.77.0.2"),
        (ray.exceptions.RayError(NO_MEMORY), "running low on memory", "10.77.0.2"),
        (ray.exceptions.RayError("gone"), "gone", ""),
        (b"garbage", "its answer cannot be read: UnpicklingError: ", ""),
        (ImportError("no module x"), "its answer cannot be read: no module x", ""),
    ],
)
def test_a_lost_actor_says_why_and_where(found: Any, why: str, host: str) -> None:
    """Whatever Ray raises where the answer should be: what the worker's methods raise is in what they return."""
    from pipeline.cluster.ray_pool import RayHandle

    answer: Future[Any] = Future()
    actor = SimpleNamespace(call=SimpleNamespace(remote=lambda *call: SimpleNamespace(future=lambda: answer)))
    future = RayHandle(actor).call("report")
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result(found)
    error = future.exception(timeout=60)
    assert isinstance(error, WorkerLost)
    assert why in str(error)
    assert error.host == host


@pytest.mark.laws
def test_actors_give_the_same_files(nodes, alone, tmp_path: Path) -> None:
    assert run("quickstart", tmp_path / "out", *RAY) == ExitCode.DONE
    assert bytes_of(tmp_path / "out") == bytes_of(alone)


@pytest.mark.laws
def test_too_little_is_said(nodes, tmp_path: Path, capsys) -> None:
    much = ("cluster.cpus=64", "cluster.start_timeout_s=1", "+cluster.resources.tpu=2")
    assert run("quickstart", tmp_path / "out", *RAY, *much) == ExitCode.FAILED
    said = capsys.readouterr().err
    assert re.search(
        r"takes 64 CPU, 2 tpu, [1-9]\d* MiB of memory, and the cluster has 2 CPU, 0 tpu, [\d,]+ MiB of", said
    )
    assert "there is too little CPU and tpu" in said


@pytest.mark.faults
@pytest.mark.parametrize("first", ["Ray", "here"])
def test_a_killed_run_goes_on_the_other_way(first: str, nodes, tmp_path: Path) -> None:
    slow, out = job_with(tmp_path, "slow"), tmp_path / "out"
    on_ray = (*RAY, f"cluster.address={nodes.address}", "cluster.piece_rows=2")
    begun, finished = (on_ray, ("chunk_rows=16",)) if first == "Ray" else (("chunk_rows=16",), on_ray)
    process = start(command(slow, out, *begun))
    while not list((out / "data").glob("*.parquet")):
        time.sleep(0.02)
        assert process.poll() is None
    process.kill()
    process.communicate()
    assert run(slow, out, *finished) == ExitCode.DONE
    assert run(slow, tmp_path / "alone", "chunk_rows=16") == ExitCode.DONE
    assert bytes_of(out) == bytes_of(tmp_path / "alone")


@pytest.mark.faults
def test_a_row_that_ends_its_actor_becomes_one_reject(nodes, tmp_path: Path) -> None:
    assert_poison_is_rejected(tmp_path, *RAY, f"cluster.address={nodes.address}")


@pytest.mark.faults
def test_the_end_of_the_own_node_is_said_at_once(tmp_path: Path) -> None:
    cluster = own_cluster()
    address = (f"cluster.address={cluster.address}", "cluster.piece_rows=2")
    process = start(command(job_with(tmp_path, "slow"), tmp_path / "out", *RAY, *address))
    try:
        while not list((tmp_path / "out/data").glob("*.parquet")):
            time.sleep(0.02)
            assert process.poll() is None
        there = actors()
        cluster.head_node.kill_raylet()
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        cluster.shutdown()
    assert process.returncode == ExitCode.FAILED, said
    assert "Ray has ended on this machine" in said
    _, alive = psutil.wait_procs(there, LEAVES_S)
    assert not alive


@pytest.mark.faults
def test_the_end_of_an_allocation_leaves_a_run_that_can_go_on(tmp_path: Path) -> None:
    """Slurm sends SIGTERM to every process of an allocation, Ray's own too, and SIGKILL 30 s later."""
    cluster = own_cluster()
    address = (f"cluster.address={cluster.address}", "cluster.piece_rows=2")
    slow = job_with(tmp_path, "slow")
    process = start(command(slow, tmp_path / "out", *RAY, *address))
    try:
        while not list((tmp_path / "out/data").glob("*.parquet")):
            time.sleep(0.02)
            assert process.poll() is None
        started = [each.process.pid for infos in cluster.head_node.all_processes.values() for each in infos]
        of_ray = [each for pid in started for each in (psutil.Process(pid), *psutil.Process(pid).children())]
        assert len(of_ray) >= 5  # GCS, raylet, two workers and the store's actor
        for each in of_ray:
            each.terminate()
        process.terminate()
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        cluster.shutdown()
    assert process.returncode == ExitCode.INTERRUPTED, said
    assert run(slow, tmp_path / "out", "chunk_rows=16") == ExitCode.DONE
    assert run(slow, tmp_path / "alone", "chunk_rows=16") == ExitCode.DONE
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "alone")


def own_cluster() -> Any:
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    return Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
