"""One copy of the model on each GPU: workers see devices of their own and change no byte; what a device ends costs its
worker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.api.errors import ExitCode
from tests.devices.fake_gpu import FakeGpus
from tests.pipeline.cluster.cluster_runs import assert_a_line_for_each_row, bytes_of, totals

JOB = ("job=quickstart", "data.limit=16", "sampling.max_tokens=12", "runtime.slots=4", "runtime.threads=1")
OWN = (*JOB, "model.gpu_layers=all", "chunk_rows=8", "report=false", "progress=none")
CLUSTER = ("cluster=processes", "cluster.gpus=1", "cluster.piece_rows=4")

pytestmark = pytest.mark.slow("starts runs with worker processes")


def run(gpus: FakeGpus, directory: Path, *arguments: str) -> tuple[int, str]:
    """Run the job; return its exit code and what it said."""
    done = gpus.pipeline(*OWN, f"output_dir={directory}", *arguments, cwd=directory.parent)
    return done.returncode, done.stderr + done.stdout


def test_more_workers_than_gpus_are_refused_with_the_list_before_anything_is_written(gpus, tmp_path):
    code, said = run(gpus.having(mb="512,2048"), tmp_path / "out", *CLUSTER, "cluster.workers=3")
    assert code == ExitCode.CONFIG
    listed = "Fake0 (a GPU for tests, 0.5 GiB), Fake1 (a GPU for tests, 2.0 GiB)"
    assert f"3 workers would need 3 GPUs, and here are 2: {listed}; start no more than 2 workers" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.laws
def test_a_worker_is_planned_with_the_gpus_that_it_has(gpus, tmp_path):
    """Both GPUs have room for the model, and one has not."""
    two = gpus.having(mb="8,8")
    assert run(two, tmp_path / "both", "dry_run=plan")[0] == ExitCode.DONE
    code, said = run(two, tmp_path / "out", *CLUSTER)
    assert code == ExitCode.CONFIG
    assert "of the memory of Fake0 and it has 8 MiB" in said
    assert "Fake1" not in said
    assert not (tmp_path / "out").exists()
    code, said = run(two, tmp_path / "out", *CLUSTER, "model.tensor_split=[1, 1]")
    assert "a share for each device that is used, 1; there is Fake0 (" in said
    two.counts()
    code, said = run(gpus, tmp_path / "out", *CLUSTER, "dry_run=true")
    assert code == ExitCode.DONE, said
    computed = [[device.graphs > 0 for device in process] for process in gpus.counts()]
    assert [True, False] in computed
    assert not any(second for _, second in computed)
    assert not any(device.most for process in two.counts() for device in process)


@pytest.mark.laws
def test_each_worker_has_a_gpu_of_its_own_and_changes_no_byte(gpus, tmp_path):
    """As many workers as GPUs. The driver and what asks for the list hold none of their memory."""
    one = gpus.having(count=1)
    assert run(one, tmp_path / "alone")[0] == ExitCode.DONE
    one.counts()
    code, said = run(gpus, tmp_path / "out", *CLUSTER)
    assert code == ExitCode.DONE, said
    assert totals(tmp_path / "out")["cluster/workers_wanted"] == 2
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "alone")
    assert re.search(
        r"worker \d+: tiny-q8_0.gguf: 7 of 7 layers \(7 on Fake0\)", (tmp_path / "out/run.log").read_text()
    )
    counts = gpus.counts()
    computed = [devices for devices in counts if any(device.graphs for device in devices)]
    assert computed
    assert all(len(devices) == 1 for devices in computed)
    others = [device for devices in counts if len(devices) == 2 for device in devices]  # the driver's, and of the list
    assert others
    assert not any(device.most for device in others)


@pytest.mark.faults
def test_a_device_that_ends_its_process_costs_the_worker_and_not_the_run(gpus, tmp_path):
    assert run(gpus.having(count=1), tmp_path / "alone")[0] == ExitCode.DONE
    code, said = run(gpus.having(abort_at=40, abort_once=tmp_path / "ended"), tmp_path / "out", *CLUSTER)
    assert code == ExitCode.DONE, said
    assert re.search("worker .* has ended: .*by signal SIGABRT", said)
    assert totals(tmp_path / "out")["cluster/workers_lost"] == 1
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "alone")
    assert_a_line_for_each_row(tmp_path / "out", 8)
