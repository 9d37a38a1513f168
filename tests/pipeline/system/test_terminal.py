"""What nobody reads takes nothing from a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.system.terminal import say
from tests.pipeline.damage import job, run


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
