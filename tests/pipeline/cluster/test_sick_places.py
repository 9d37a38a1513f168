"""A place on which all workers end, on workers in threads: the run goes on elsewhere, and no byte changes."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from pipeline.api.errors import ExitCode
from pipeline.cluster.pieces import WorkRequest, WorkResult
from pipeline.cluster.places import MOST_STARTS, Place
from pipeline.cluster.worker import Worker
from tests.pipeline.cluster.cluster_runs import bytes_of, run
from tests.pipeline.cluster.thread_pool import ThreadHandle, ThreadPool, workers_in_threads

FAKE = ("model=fake", "chunk_rows=16", "sampling.max_tokens=8")


@pytest.mark.parametrize("method", ["open", "compute"])
def test_a_place_whose_workers_all_end_changes_no_byte(method: str, tmp_path: Path, monkeypatch) -> None:
    """They end when they open, until the place rests and others begin; or with what they are to compute."""
    start_worker, rest, compute, rests = ThreadPool.start_worker, Place.rest, Worker.compute, threading.Event()

    def start_one(self: ThreadPool, name: str) -> ThreadHandle:
        handle = start_worker(self, name)
        if name.partition(".")[0] == "2":
            monkeypatch.setattr(handle, "call", lambda called, *args: end(handle, called, *args))
        return handle

    def end(handle: ThreadHandle, called: str, *args: object) -> Future[object]:
        if called == method:
            handle.kill()
        return ThreadHandle.call(handle, called, *args)

    def begin_to_rest(self: Place, now: float) -> float:
        rests.set()
        return rest(self, now)

    def wait(self: Worker, task: WorkRequest) -> WorkResult:
        assert method == "compute" or rests.wait(120)
        return compute(self, task)

    assert run("quickstart", tmp_path / "alone", *FAKE) == ExitCode.DONE
    for where, name, new in (
        (ThreadPool, "start_worker", start_one),
        (Place, "rest", begin_to_rest),
        (Worker, "compute", wait),
    ):
        monkeypatch.setattr(where, name, new)
    with workers_in_threads():
        assert run("quickstart", tmp_path / "out", *FAKE, "cluster=processes", "cluster.piece_rows=2") == ExitCode.DONE
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "alone")
    status = json.loads((tmp_path / "out/status.json").read_text())
    assert status["workers"]["workers_wanted"] == 2
    if method == "open":
        assert any("workers 1/2, 1 rests after failures" in text for text in status["statuses"])
        assert status["workers"]["workers_open"] == 1
        assert status["workers"]["workers_lost"] == MOST_STARTS
