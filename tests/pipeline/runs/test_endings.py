"""Nothing behind the rows holds a run: each process ends in time, with the code of what is recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.pipeline.misbehaving import HANGS, JOB, RAISES, STAYS, VARIABLE

ROOT = Path(__file__).parents[3]
MAIN = "from tests.pipeline.misbehaving import main; main()"
HOOKS = ("process", "close", "conclude", "report", "on_finish", "publish")
EACH = [(hook, how) for hook in HOOKS for how in (*STAYS, "error", "exit 7")]
OFTEN = [("process", "pool")]
LIMIT_S = 120
"""Of a process that hangs; the test is red then."""


def begin(folder: Path, *arguments: str, misbehave: str = "", **streams: object) -> subprocess.Popen[str]:
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    given = [f"job={folder}/job.yaml", f"output_dir={folder}/out", "runtime.stall_timeout_s=20", *arguments]
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *given],
        cwd=ROOT,
        env={**os.environ, VARIABLE: misbehave, HANGS: str(folder / "hangs")},
        text=True,
        **{"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, **streams},  # type: ignore[call-overload]
    )


def state(folder: Path) -> str:
    return str(json.loads((folder / "out/status.json").read_text(encoding="utf-8"))["state"])


@pytest.mark.parametrize("case", [c if c in OFTEN else pytest.param(c, marks=pytest.mark.faults) for c in EACH])
def test_the_process_ends_and_the_rows_are_there(tmp_path, case):
    hook, how = case
    arguments = []
    if hook == "on_finish":
        what = {"sleeps": "sleep 60", "forks": "sleep 60 &", "pool": "sleep 60 &", "thread": "true"}.get(how, "exit 7")
        arguments = [f"on_finish.command=[/bin/sh,-c,{what!r}]", "on_finish.timeout_s=1"]
    if hook == "publish":
        arguments = ["output.publish=faulty://place", "output.retries=0"]
    process = begin(tmp_path, *arguments, misbehave=f"{hook}:{how}")
    try:
        errors = process.communicate(timeout=LIMIT_S)[1]
    finally:
        process.kill()
    broken = how in RAISES or how == "sleeps"
    fails = broken and hook in ("process", "conclude", "publish")
    assert process.returncode == (1 if fails or case == ("close", "exit 7") else 0), errors
    assert state(tmp_path) == ("failed" if broken and hook in ("process", "conclude") else "done")
    if hook != "process":
        assert json.loads((tmp_path / "out/manifest.json").read_text())["counts"]["data_rows"] == 25


@pytest.mark.faults
@pytest.mark.parametrize("hook", ["open", "close", "conclude", "report", "on_finish"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_ending_that_hangs(tmp_path, hook, number):
    arguments = ["runtime.stall_timeout_s=1000"]
    if hook == "on_finish":
        arguments += [f"on_finish.command=[/bin/sh,-c,'touch {tmp_path}/hangs; sleep 60']", "on_finish.timeout_s=1000"]
    process = begin(tmp_path, *arguments, misbehave=f"{hook}:sleeps")
    try:
        while not (tmp_path / "hangs").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        errors = process.communicate(timeout=LIMIT_S)[1]
    finally:
        process.kill()
    assert process.returncode == 4, errors
