"""A signal at any stage of a run with workers: all of them and the store's actor leave, and the same command goes
on."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pipeline.api.errors import ExitCode
from tests.pipeline.cluster.cluster_runs import bytes_of, run
from tests.pipeline.cluster.processes import OPS, STORE, WORKER, command, start, workers_of

pytestmark = pytest.mark.slow("signals whole jobs with workers at each stage")

LEAVES_S = 5.0
MODEL = ("model=fake", "chunk_rows=16", "sampling.max_tokens=8")
RAY = ("cluster=ray", "cluster.address=local", "cluster.cpus=0.5")
CLUSTERS = {"processes": ("cluster=processes",), "ray": RAY}
SENT = {"processes": signal.SIGINT, "ray": signal.SIGTERM}
"""Ray sets handlers of SIGTERM of its own; its workers do not get a SIGINT."""
STAGES = ("start", "workers", "load", "decode", "commit", "end", "left")
CHUNKS = 3


def reached(stage: str, folder: Path, driver: psutil.Process, workers: Collection[psutil.Process]) -> bool:
    """True if a run has come to `stage`. `workers`: that it has had."""
    committed = len(list((folder / "out/data").glob("*.parquet")))
    return {
        "start": (folder / "out").exists(),
        "workers": bool(workers),
        "load": (folder / "load").exists(),
        "decode": (folder / "decode").exists(),
        "commit": committed > 0,
        "end": committed == CHUNKS,
        "left": committed == CHUNKS and not driver.children(),
    }[stage]


def wait(seconds: float, true: Callable[[], bool]) -> bool:
    """Wait until `true`; return False if that takes longer."""
    until = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < until:
        time.sleep(0.01)
    return found


def lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def kill_all(process: subprocess.Popen[str]) -> None:
    """Kill what is left of a run, or of a test that failed: a cluster of Ray would slow all tests after it."""
    if process.poll() is None:
        driver = psutil.Process(process.pid)
        for each in [*driver.children(recursive=True), driver]:
            with suppress(psutil.Error):
                each.kill()
        process.communicate()


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, str]:
    """The bytes of a run without workers."""
    out: Path = tmp_path_factory.mktemp("alone") / "out"
    assert run("quickstart", out, *MODEL) == ExitCode.DONE
    return bytes_of(out)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("kind", "sent", "stage"),
    [(kind, sent, stage) for kind, sent in SENT.items() for stage in STAGES] + [("ray", signal.SIGINT, "commit")],
)
def test_a_signal_ends_all_workers(kind: str, sent: signal.Signals, stage: str, alone, tmp_path: Path, request) -> None:
    if kind == "ray":
        pytest.importorskip("ray", reason="the extra `ray` is not installed")
    model = (*MODEL, f"model.loader={OPS}:load", f"+model.options.folder={tmp_path}")
    cluster = (*CLUSTERS[kind], "cluster.workers=2", "cluster.piece_rows=4")
    slow = f"+model.options.load_s={60 if stage == 'load' else 0}"
    process = start(command("quickstart", tmp_path / "out", *model, slow, *cluster))
    request.addfinalizer(lambda: kill_all(process))
    there: set[psutil.Process] = set()
    stores: set[psutil.Process] = set()

    def come() -> bool:
        assert process.poll() is None
        there.update(workers_of(process))
        stores.update(workers_of(process, STORE))
        return reached(stage, tmp_path, psutil.Process(process.pid), there)

    assert wait(120, come)
    process.send_signal(sent)
    wait(LEAVES_S, lambda: not any(map(lives, there | stores)))
    left = [one for one in (*there, *stores, *workers_of(process, (*WORKER, *STORE))) if lives(one)]
    _, said = process.communicate(timeout=240)
    assert process.returncode in (ExitCode.INTERRUPTED, *([ExitCode.DONE] if stage in ("end", "left") else [])), said
    assert not left
    assert stores or kind != "ray" or stage in ("start", "workers")
    resumed = start(command("quickstart", tmp_path / "out", *model, "+model.options.load_s=0"))
    _, said = resumed.communicate(timeout=240)
    assert resumed.returncode == ExitCode.DONE, said
    assert bytes_of(tmp_path / "out") == alone
