"""Workers as processes: what ends one costs its pieces a second try, and nothing else."""

from __future__ import annotations

import platform
import re
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.run_dir.manifest import read_manifest
from tests.pipeline.cluster.cluster_runs import assert_a_line_for_each_row, bytes_of, run, totals
from tests.pipeline.cluster.processes import (
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
    assert re.search(r"worker \d+: row 3 takes a while", (tmp_path / "out/run.log").read_text())
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "alone")
    assert totals(tmp_path / "out")["cluster/workers_lost"] == 1
    assert_a_line_for_each_row(tmp_path / "out", 16)


@pytest.mark.faults
def test_a_row_that_ends_its_worker_becomes_one_reject(tmp_path: Path) -> None:
    assert_poison_is_rejected(tmp_path, *PROCESSES)


@pytest.mark.faults
def test_a_row_that_ends_its_worker_stays_where_all_nodes_keep_errors(tmp_path: Path) -> None:
    names = ("render", "tokenize", "batch", "generate", "trouble")
    few = ("data.limit=12", "max_error_rate=0.5", *(f"nodes.{name}.on_error=keep" for name in names))
    code, said = finished(command(job_with(tmp_path, "poison"), tmp_path / "out", *PROCESSES, *few))
    assert code == ExitCode.DONE, said
    rows = pq.read_table(tmp_path / "out/data").to_pylist()
    assert [row["row"] for row in rows] == list(range(12))
    ended = [row for row in rows if "hare" in row["prompt"]]
    assert ended
    assert all(re.match(r"it ended \d+ workers", row[f"{name}_error"]) for row in ended for name in names)
    assert all(row[f"{name}_error"] is None for row in rows if row not in ended for name in names)
    (counted,) = read_manifest(tmp_path / "out")["rejects"]
    assert (counted["node"], counted["kind"], counted["rows"]) == ("render", "kept", len(ended))


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
    code, said = finished(command(job, tmp_path / "out", *PROCESSES, "runtime.stall_timeout_s=40"))
    assert code == ExitCode.DONE, said
    assert "nothing has moved in it" in said
    assert pq.read_table(tmp_path / "out/data").num_rows == 40


@pytest.mark.faults
def test_workers_end_with_their_driver(tmp_path: Path) -> None:
    process = start(command(job_with(tmp_path, "slow"), tmp_path / "out", *PROCESSES))
    workers = wait_for_workers(process, 2)
    process.kill()
    process.communicate(timeout=240)
    _, alive = psutil.wait_procs(workers, LEAVES_S)
    assert not alive
