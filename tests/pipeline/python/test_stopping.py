"""Runs from Python in threads, beside an event loop, and stopped by signals."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading

import pytest

from pipeline import PROJECT, Result, estimate, load, run
from tests.pipeline.python.test_run import FEW, QUIET, parts

pytestmark = pytest.mark.slow("runs whole jobs from Python")


def test_it_runs_in_a_thread_and_beside_an_event_loop():
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(run("quickstart", FEW, **QUIET)))
    thread.start()
    thread.join()

    async def both() -> list[Result]:
        inside = run("quickstart", FEW, **QUIET)
        return [inside, await asyncio.to_thread(run, "quickstart", FEW, **QUIET)]

    results += asyncio.run(both())
    frames = [result.rows().collect() for result in results]
    assert all(frame.equals(frames[0]) for frame in frames)


STOPPED = """
import os, signal, sys, threading, time
from pathlib import Path
from pipeline import run
from pipeline.api.errors import Interrupted

def stop():
    while len(list(Path(sys.argv[1]).glob("data/part-*"))) < 2:  # a file is there before it is committed
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=stop, daemon=True).start()
try:
    given = {"sampling.max_tokens": 8, "runtime.threads": 1, "chunk_rows": 4, "data.limit": 32}
    run("quickstart", given, directory=sys.argv[1], progress="none", report=False)
except Interrupted as error:
    print("stopped", flush=True)
"""


def test_a_signal_leaves_a_run_that_the_same_call_finishes(tmp_path):
    given = {"sampling.max_tokens": 8, "runtime.threads": 1, "chunk_rows": 4, "data.limit": 32, **QUIET}
    command = [sys.executable, "-c", STOPPED, str(tmp_path / "out")]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert ended.stdout == "stopped\n"
    counts = load(tmp_path / "out").counts
    assert 0 < counts["data_rows"] < 32
    there = f"{counts['chunks']} chunks, {counts['data_rows']} rows, are committed there: a run would go on behind them"
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    found = estimate("quickstart", given, directory=tmp_path / "out")
    assert there in str(found).splitlines()
    assert found.forecast is not None
    assert found.forecast.rows_out.likely == 32 - counts["data_rows"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    assert run("quickstart", given, directory=tmp_path / "out").counts["data_rows"] == 32
    assert parts(tmp_path / "out") == parts(run("quickstart", given, directory=tmp_path / "whole").directory)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
