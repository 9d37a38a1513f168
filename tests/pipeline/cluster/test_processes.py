"""Workers as processes: what ends one costs its pieces a second try, and nothing else."""

from __future__ import annotations

import platform
import re
import signal
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from tests.pipeline.cluster.cluster_runs import assert_a_line_for_each_row, bytes_of, run, totals
from tests.pipeline.cluster.processes import (
    OPS,
    assert_poison_is_rejected,
    command,
    finished,
    job_with,
    start,
    wait_for_workers,
)

pytestmark = pytest.mark.slow("starts worker processes")

PROCESSES = ("cluster=processes", "cluster.workers=2", "cluster.piece_rows=4", "chunk_rows=16")
PROMPTS = PROJECT / "jobs/data/quickstart.jsonl"
LEAVES_S = 5.0


def test_a_killed_worker_is_replaced_and_changes_no_byte(tmp_path: Path) -> None:
    slow = job_with(tmp_path, "slow")
    assert run(slow, tmp_path / "alone", "chunk_rows=16") == ExitCode.DONE
    process = start(command(slow, tmp_path / "out", *PROCESSES))
    first = wait_for_workers(process, 2)[0]
    while not (tmp_path / "out/completions.sqlite").exists():  # a worker has opened
        time.sleep(0.02)
    first.kill()
    _, said = process.communicate(timeout=240)
    assert process.returncode == ExitCode.DONE, said
    assert "by signal SIGKILL" in said
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "alone")
    assert totals(tmp_path / "out")["cluster/workers_lost"] == 1
    assert_a_line_for_each_row(tmp_path / "out", 16)


@pytest.mark.faults
def test_a_row_that_ends_its_worker_becomes_one_reject(tmp_path: Path) -> None:
    assert_poison_is_rejected(tmp_path, *PROCESSES)


@pytest.mark.laws
def test_an_operator_that_raises_ends_the_run_and_names_the_worker(tmp_path: Path) -> None:
    code, said = finished(command(job_with(tmp_path, "fails"), tmp_path / "out", *PROCESSES))
    assert code == ExitCode.FAILED
    where = re.escape(platform.node())
    assert re.search(rf"error: worker \d on {where}: node 'trouble' failed: ValueError: no such luck", said)
    assert "row 17" in said


@pytest.mark.faults
def test_a_worker_that_hangs_is_ended(tmp_path: Path) -> None:
    job = job_with(tmp_path, "hangs_once", f'flag: "{tmp_path}/flag"')
    code, said = finished(command(job, tmp_path / "out", *PROCESSES, "runtime.stall_timeout_s=6"))
    assert code == ExitCode.DONE, said
    assert "nothing has moved in it" in said
    assert pq.read_table(tmp_path / "out/data").num_rows == 40


@pytest.mark.faults
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_workers_and_the_run_can_go_on(sent: signal.Signals, tmp_path: Path) -> None:
    slow = job_with(tmp_path, "slow")
    process = start(command(slow, tmp_path / "out", *PROCESSES))
    workers = wait_for_workers(process, 2)
    while not list((tmp_path / "out/data").glob("*.parquet")):
        time.sleep(0.02)
    process.send_signal(sent)
    _, said = process.communicate(timeout=240)
    assert process.returncode == ExitCode.INTERRUPTED, said
    _, alive = psutil.wait_procs(workers, LEAVES_S)
    assert not alive
    assert run(slow, tmp_path / "out", "chunk_rows=16") == ExitCode.DONE
    assert run(slow, tmp_path / "alone", "chunk_rows=16") == ExitCode.DONE
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "alone")


@pytest.mark.faults
def test_workers_end_with_their_driver(tmp_path: Path) -> None:
    process = start(command(job_with(tmp_path, "slow"), tmp_path / "out", *PROCESSES))
    workers = wait_for_workers(process, 2)
    process.kill()
    process.communicate(timeout=240)
    _, alive = psutil.wait_procs(workers, LEAVES_S)
    assert not alive


@pytest.mark.faults
def test_a_node_that_is_lost_with_workers_that_load_does_not_end_the_run(tmp_path: Path) -> None:
    """All workers end at once before they are open: those that take their places begin."""
    slow = job_with(tmp_path, "slow")
    process = start(command(slow, tmp_path / "out", *PROCESSES, "cluster.workers=3"))
    for worker in wait_for_workers(process, 3):
        worker.kill()
    _, said = process.communicate(timeout=240)
    assert process.returncode == ExitCode.DONE, said
    assert totals(tmp_path / "out")["cluster/workers_lost"] == 3
    assert run(slow, tmp_path / "alone", "chunk_rows=16") == ExitCode.DONE
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "alone")


@pytest.mark.faults
@pytest.mark.parametrize("how", ["computes", "loads", "raises"])
def test_a_sick_machine_changes_no_byte(how: str, tmp_path: Path) -> None:
    """Here it is a GPU on which workers end when they compute, when they load, or that has no memory left."""
    few, where = ("data.limit=24", "sampling.max_tokens=8"), re.escape(platform.node())
    waits_for = "worker 2 has ended" if how == "computes" else "in a row ended in place 2"
    job = job_with(tmp_path, "ends_on_gpu_1", f'log: "{tmp_path}/out/run.log"', f'said: "{waits_for}"')
    options = f"{{folder: {tmp_path}, load_s: 0, raises: {how == 'raises'}}}"
    other_loader = (f"model.loader={OPS}:load_unless_gpu_1", f"+model.options={options}")
    model = () if how == "computes" else other_loader
    code, said = finished(command(job, tmp_path / "out", *PROCESSES, *few, *model, "cluster.gpus=1"))
    assert code == ExitCode.DONE, said
    cause = "it cannot begin: .*CUDA error: out of memory" if how == "raises" else "its process ended by signal SIGKILL"
    assert re.search(f"worker 2 has ended: on {where}: {cause}", said)
    if how != "computes":
        assert len(re.findall(f"in a row ended in place 2 before .* of 2 are open; .*{cause}", said)) == 1
    assert run(job_with(tmp_path, "slow"), tmp_path / "alone", "chunk_rows=16", *few) == ExitCode.DONE
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "alone")


@pytest.mark.faults
def test_workers_that_cannot_begin_end_the_run(tmp_path: Path) -> None:
    soon = "cluster.start_timeout_s=0.001"
    code, said = finished(command(job_with(tmp_path, "slow"), tmp_path / "out", *PROCESSES, soon))
    assert code == ExitCode.FAILED
    assert "no worker was ready within cluster.start_timeout_s=0.001 s" in said
