"""Nothing behind the rows holds a run: each process ends in time, with the code of what is recorded. A run in which
nothing moves is ended, says where everything stood, and can be resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.api.errors import PipelineError
from pipeline.api.meter import StageMeter
from pipeline.runs.watchdog import LEAVE_S, Watchdog
from pipeline.system.deadlines import stacks
from tests.pipeline.command_line import ended
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


class Run:
    """A run that the test moves by hand."""

    def __init__(self, timeout_s: float | None = 60.0, patience_s: float = 0.0) -> None:
        self.now = 0.0
        self.meter = StageMeter("decode")
        self.stopped: list[PipelineError] = []
        self.left: list[float] = []
        executor = SimpleNamespace(
            meters=[self.meter],
            patience_s=patience_s,
            describe=lambda: ["decode: busy"],
            stop=self.stopped.append,
            abandon=lambda: self.left.append(self.now),
        )
        self.watchdog = Watchdog(timeout_s, executor, lambda: None, lambda: self.now)  # type: ignore[arg-type]

    def at(self, now: float) -> None:
        self.now = now
        self.watchdog.check()


def test_as_long_as_anything_moves_nothing_happens():
    run = Run()
    for minute in range(100):
        run.meter.tokens_out += 1
        run.at(minute * 59.0)
    assert not run.stopped


def test_it_stops_the_run_once_and_logs_threads_and_channels(caplog):
    run = Run()
    run.meter.rows_in = 5
    for now in (0.0, 59.0, 60.0, 61.0):
        run.at(now)
    for thread in threading.enumerate():
        if thread.name == "last words":
            thread.join()
    (why,) = run.stopped
    assert "nothing has moved for 60 s" in str(why)
    assert "runtime.stall_timeout_s" in str(why)
    assert "decode: busy" in caplog.text
    assert "thread MainThread" in caplog.text
    assert not run.left


def test_threads_of_a_run_that_does_not_end_are_left():
    run = Run()
    run.at(0.0)
    run.at(60.0)
    run.at(60.0 + LEAVE_S - 1)
    assert not run.left
    run.at(60.0 + LEAVE_S)
    run.watchdog.__exit__()
    assert run.left == [60.0 + LEAVE_S]


def test_what_waits_for_a_server_is_no_stall():
    run = Run(patience_s=3600.0)
    run.at(0.0)
    run.at(3599.0)
    assert not run.stopped
    run.at(3600.0)
    assert "nothing has moved for 3600 s" in str(run.stopped[0])


def test_without_a_limit_it_never_does():
    run = Run(None)
    run.at(1e9)
    assert not run.stopped


def test_the_stacks_name_threads_and_lines():
    ready, end = threading.Event(), threading.Event()

    def waits_here() -> None:
        ready.set()
        end.wait()

    thread = threading.Thread(target=waits_here, name="the-one-that-waits")
    thread.start()
    ready.wait()
    found = stacks()
    end.set()
    thread.join()
    assert "thread the-one-that-waits" in found
    assert "in waits_here" in found


CODE = """
import sys, threading
from pathlib import Path
from types import SimpleNamespace
import pipeline.runs.watchdog
from tests.pipeline.job_ops import Hangs
from tests.pipeline.squares import OPS, job, run
from pipeline.settings import NodeSettings
from pipeline.api.groups import EngineFields
from pipeline.monitor.recorder import Recorder
from pipeline.run_dir.state import RunState
from pipeline.system import deadlines
pipeline.runs.watchdog.LEAVE_S = deadlines.EXIT_S = 0.3
check = pipeline.runs.watchdog.Watchdog.check


def check_once_it_hangs(watchdog):  # a machine under load may stand still before
    return not Hangs.begun.is_set() or check(watchdog)


pipeline.runs.watchdog.Watchdog.check = check_once_it_hangs


def hold_the_lock(state, *given):
    with state._lock:
        threading.Event().wait()


def hang(*given):
    threading.Event().wait()


if sys.argv[3:] == ["commit"]:
    RunState.commit = hold_the_lock
if sys.argv[3:] == ["disk"]:
    Recorder.tick = hang
settings = job(Path(sys.argv[1]), runtime=EngineFields(stall_timeout_s=0.3), report=False)
settings.nodes["square"] = NodeSettings({"_target_": f"{OPS}.Hangs", "at": 27, "healed": sys.argv[2]}, "numbers")
sys.exit(run(settings))
"""


@pytest.mark.faults
@pytest.mark.parametrize("what", ["commit", "disk"])
def test_nor_can_a_commit_or_a_disk_that_hangs(tmp_path, what):
    """The main thread hangs with it, in the lock of the state or in its own write: the process is ended."""
    command = [sys.executable, "-c", CODE, str(tmp_path / "out"), str(tmp_path / "healed"), what]
    done = ended(ROOT, *command)
    assert done.returncode == 1, done.stderr
    assert "the run does not end; the process leaves" in done.stderr
    assert "in process" in (tmp_path / "out/run.log").read_text()


def test_a_hanging_thread_cannot_keep_the_process_and_the_run_resumes(tmp_path):
    """A node that never returns: exit code 1, what was committed stays, and the next run goes on."""
    healed = tmp_path / "healed"
    command = [sys.executable, "-c", CODE, str(tmp_path / "out"), str(healed)]
    first = ended(ROOT, *command)
    assert first.returncode == 1, first.stderr
    log = (tmp_path / "out/run.log").read_text()
    assert "square: busy" in log
    assert "of 1024 rows" in log
    assert "in process" in log
    healed.touch()
    second = ended(ROOT, *command)
    assert second.returncode == 0, second.stderr
    assert "resuming: 20 rows (2 chunks) are committed already" in (tmp_path / "out/run.log").read_text()
