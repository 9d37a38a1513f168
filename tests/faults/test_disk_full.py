"""A full disk: one clear error, no row lost, and the same command goes on when there is room.

Where small file systems can be mounted the whole of it is tried, with ever less room; everywhere, each file that a run
writes is led to /dev/full.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.api.records import Output
from pipeline.settings import JobSettings
from tests.pipeline.command_line import ended
from tests.pipeline.damage import files, run
from tests.pipeline.damage import job as job_of
from tests.pipeline.job_ops import Parquet
from tests.sets import often, often_cases

pytestmark = pytest.mark.slow("fills disks under whole runs")

OPS = "tests.pipeline.job_ops"
HERE = "tests.faults.test_disk_full"
NEEDS_DEV_FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
DRIVER = PROJECT / "tests" / "faults" / "full_disk.py"


class ShardTooLarge(Parquet):
    """Has the file of chunk 3 written to a device that is always full, while the file `full` exists."""

    def __init__(self, full: str) -> None:
        super().__init__()
        self.full = Path(full)

    def finish(self, chunk: int) -> Iterable[Output]:
        if chunk == 3 and self.full.exists():
            (self.directory / "part-00003.parquet.tmp").symlink_to("/dev/full")
        return super().finish(chunk)


class NoRoomAt(Parquet):
    """A sink of a user's own that lets the system's error through when chunk 3 ends, while the file `full` exists."""

    def __init__(self, full: str, number: int) -> None:
        super().__init__()
        self.full, self.number = Path(full), number

    def finish(self, chunk: int) -> Iterable[Output]:
        if chunk == 3 and self.full.exists():
            raise OSError(self.number, os.strerror(self.number))
        return super().finish(chunk)


def job(directory: Path, write: dict[str, Any] | None = None) -> JobSettings:
    return job_of(directory, write=write, max_open_chunks=1)


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """A run that has committed three of its five chunks and goes on when it is run again."""
    flag = tmp_path / "flag"
    flag.touch()
    settings = job(tmp_path / "out", failing(flag, errno.EIO))
    assert run(settings) is ExitCode.FAILED
    flag.unlink()
    return tmp_path / "out"


def failing(flag: Path, number: int) -> dict[str, Any]:
    return {"_target_": f"{HERE}.NoRoomAt", "full": str(flag), "number": number}


@pytest.mark.parametrize(
    ("number", "remedy"),
    often_cases(
        [(errno.ENOSPC, "make room"), (errno.EDQUOT, "make room"), (errno.EROFS, "make it writable for this user")],
        errno.EROFS,
    ),
)
def test_an_error_that_a_users_sink_lets_through_is_explained(tmp_path, caplog, number, remedy):
    flag = tmp_path / "flag"
    flag.touch()
    settings = job(tmp_path / "out", failing(flag, number))
    assert run(settings) is ExitCode.FAILED
    assert f"{tmp_path / 'out'} cannot be written: {os.strerror(number)} (" in caplog.text
    assert f"bytes are free there); {remedy} and run the same command again" in caplog.text
    flag.unlink()
    assert run(settings) is ExitCode.DONE
    assert run(job(tmp_path / "whole")) is ExitCode.DONE
    assert files(tmp_path / "out") == files(tmp_path / "whole")


@NEEDS_DEV_FULL
@pytest.mark.parametrize(
    "name",
    often(["config.yaml", "status.json", "manifest.json", "metrics/run.parquet"], "status.json", "manifest.json"),
)
def test_each_file_of_a_run_that_does_not_fit_is_named_and_the_next_run_is_whole(tmp_path, unfinished, caplog, name):
    settings = job(unfinished, failing(tmp_path / "flag", errno.EIO))
    (unfinished / f"{name}.tmp").symlink_to("/dev/full")
    caplog.clear()
    assert run(settings) is ExitCode.FAILED
    errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR" and getattr(r, "only", "file") == "file"]
    assert len(errors) == 1
    assert f"{unfinished / name} cannot be written: " in errors[0]
    assert "make room" in errors[0]
    assert run(settings) is ExitCode.DONE  # what the failed write had filled is gone, and so is the link
    assert json.loads((unfinished / "manifest.json").read_text())["status"] == "done"
    assert run(job(tmp_path / "whole", failing(tmp_path / "flag", errno.EIO))) is ExitCode.DONE
    assert files(unfinished) == files(tmp_path / "whole")


@NEEDS_DEV_FULL
def test_a_shard_that_does_not_fit_is_named_and_leaves_nothing_behind(tmp_path, caplog):
    flag = tmp_path / "flag"
    flag.touch()
    settings = job(tmp_path / "out", {"_target_": f"{HERE}.ShardTooLarge", "full": str(flag)})
    assert run(settings) is ExitCode.FAILED
    shard = tmp_path / "out/data/part-00003.parquet"
    assert f"node 'write' failed: StorageError: {shard} cannot be written: No space left on device (" in caplog.text
    assert sorted(files(tmp_path / "out/")) == [f"data/part-{k:05}.parquet" for k in range(3)] + [
        "rejects/part-00000.parquet"
    ]
    flag.unlink()
    assert run(settings) is ExitCode.DONE
    assert run(job(tmp_path / "whole")) is ExitCode.DONE
    assert files(tmp_path / "out") == files(tmp_path / "whole")


@NEEDS_DEV_FULL
def test_what_does_not_fit_at_the_end_hides_no_earlier_error(tmp_path, unfinished, caplog):
    flag = tmp_path / "flag"
    flag.touch()
    for name in ("manifest.json", "metrics/run.parquet"):
        (unfinished / f"{name}.tmp").symlink_to("/dev/full")
    caplog.clear()
    assert run(job(unfinished, failing(flag, errno.EIO))) is ExitCode.FAILED
    errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR" and getattr(r, "only", "file") == "file"]
    assert len(errors) == 1
    assert "node 'write' failed" in errors[0]
    (also,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert also == f"these could not be written either: {unfinished}/metrics/run.parquet, {unfinished}/manifest.json"


@NEEDS_DEV_FULL
def test_a_run_log_that_does_not_fit_is_said_once_and_ends_nothing(unfinished, tmp_path, capsys):
    (unfinished / "run.log").unlink()
    (unfinished / "run.log").symlink_to("/dev/full")
    assert run(job(unfinished, failing(tmp_path / "flag", errno.EIO))) is ExitCode.DONE
    shown = capsys.readouterr().err
    assert shown.count("run.log cannot be written: No space left on device") == 1
    assert "Traceback" not in shown


def mounts() -> list[str] | None:
    """A prefix for commands that gives them mounts of their own; None where that is not allowed."""
    unshare = shutil.which("unshare")
    for options in (["-m"], ["-Urm"]):
        prefix = [str(unshare), *options]
        mounted = [*prefix, "mount", "-t", "tmpfs", "none", "/mnt"]
        if unshare and subprocess.run(mounted, capture_output=True, check=False).returncode == 0:
            return prefix
    return None


@pytest.fixture(scope="module")
def own_mounts() -> list[str]:
    prefix = mounts()
    if prefix is None:
        pytest.skip("no file system can be mounted here (unshare -m, unshare -Urm)")
    return prefix


# Which file is the first that does not fit is a race between threads, but for the first two.
@pytest.mark.faults
@pytest.mark.parametrize(("what", "expected"), [("squares", {".lock", "state.sqlite"}), ("generate", set())])
def test_with_ever_less_room_a_run_fails_clearly_and_goes_on_when_there_is_room(tmp_path, own_mounts, what, expected):
    """In a file system of its own, one process runs the job with ever less room, and again with more (full_disk.py)."""
    (tmp_path / "disk").mkdir()
    done = ended(tmp_path, *own_mounts, sys.executable, str(DRIVER), what, str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    tried = json.loads(done.stdout.splitlines()[-1])
    assert not [one for one in tried if one["wrong"]]
    named = {name for one in tried for name in one["named"]}
    assert expected <= named
    assert len(named) > len(expected)
    assert any(not one["named"] for one in tried), "it never fitted"
