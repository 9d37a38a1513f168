"""What nobody reads takes nothing from a run."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.system.terminal import say
from tests.pipeline.damage import job, run
from tests.pipeline.misbehaving import JOB, VARIABLE

ROOT = Path(__file__).parents[3]


@contextmanager
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stdout whose reader has gone, as behind `... | head`. No fixture: pytest sets stdout before a test's call."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        yield


def test_what_nobody_reads_is_dropped_now_and_later(monkeypatch):
    with unread(monkeypatch):
        print("before", flush=False)
        with pytest.raises(BrokenPipeError):
            sys.stdout.flush()
        say(["one", "two"])
        assert os.path.samestat(os.fstat(sys.stdout.fileno()), Path(os.devnull).stat())
        say(["three"])
        print("four", flush=True)


def test_a_run_is_done_though_nobody_reads_its_summary(tmp_path, monkeypatch):
    with unread(monkeypatch):
        assert run(job(tmp_path / "out")) is ExitCode.DONE
    assert (tmp_path / "out/manifest.json").exists()
    assert "output 43 rows" in (tmp_path / "out/run.log").read_text()


def test_a_command_that_nobody_reads_leaves_without_a_traceback(monkeypatch, capsys):
    with unread(monkeypatch):
        assert main(["jobs"]) == ExitCode.FAILED
    assert capsys.readouterr().err == ""


STREAMS = {
    "stdout is full": "> /dev/full",
    "stderr is full": "2> /dev/full",
    "both are full": "> /dev/full 2>&1",
    "both are closed": ">&- 2>&-",
    "all are closed": "<&- >&- 2>&-",
    "nobody reads": "2>&1 | true",
}


@pytest.mark.parametrize(
    "how", [h if h == "all are closed" else pytest.param(h, marks=pytest.mark.faults) for h in STREAMS]
)
@pytest.mark.parametrize("progress", ["auto", "json"])
def test_where_nothing_can_be_printed_a_run_ends_as_it_would(tmp_path, how, progress):
    (tmp_path / "job.yaml").write_text(JOB.replace("progress: none", f"progress: {progress}"), encoding="utf-8")
    told = f"on_finish.command=[/bin/sh,-c,'echo $PIPELINE_EXIT_CODE > {tmp_path}/told']"
    command = [sys.executable, "-m", "pipeline", f"job={tmp_path}/job.yaml", f"output_dir={tmp_path}/out", told]
    line = f"set -o pipefail; {shlex.join(command)} {STREAMS[how]}"
    code = subprocess.run(
        ["bash", "-c", line], cwd=ROOT, check=False, env={**os.environ, VARIABLE: "status:error"}
    ).returncode
    assert code == 0
    assert (tmp_path / "told").read_text() == "0\n"
    assert main(["verify", str(tmp_path / "out")]) == ExitCode.DONE
