"""Where a run may not read or write, it ends with exit code 2 before any work, with the path and what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.faults.test_disk_full import own_mounts
from tests.pipeline.command_line import ended

__all__ = ["own_mounts"]
pytestmark = pytest.mark.slow("starts unprivileged processes")

ROWS = pa.table({"prompt": [f"prompt {i}" for i in range(20)]})
JOB = ("job=generate", "model=fake", "sampling.max_tokens=4", "chunk_rows=8", "progress=none")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS.to_pylist()))
    return path


def unprivileged(*command_lines: list[str]) -> list[tuple[int, str]]:
    """Exit code and stderr of each, where permission bits count for root too."""
    driver = PROJECT / "tests" / "faults" / "unprivileged.py"
    done = ended(PROJECT, sys.executable, str(driver), json.dumps(command_lines))
    if "prctl" in done.stderr:
        pytest.skip(f"capabilities cannot be dropped here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return [(code, shown) for code, shown in json.loads(done.stdout.splitlines()[-1])]


def test_an_output_directory_below_a_file(tmp_path, data, capsys):
    (tmp_path / "file").touch()
    assert main([*JOB, f"data.path={data}", f"output_dir={tmp_path / 'file' / 'out'}"]) == ExitCode.CONFIG
    shown = capsys.readouterr().err
    assert f"output directory {tmp_path / 'file' / 'out'} cannot be used: Not a directory" in shown
    assert "give another output_dir=" in shown


def test_inputs_and_output_directories_without_permission(tmp_path, data):
    """In one process for both, whose start takes most of the time."""
    places, inputs = output_directories(tmp_path, data), unreadable(tmp_path, data)
    out = tmp_path / "out"
    found = unprivileged(
        *([*JOB, f"data.path={data}", f"output_dir={place}"] for place in places),
        *([*JOB, f"data.path={path}", f"output_dir={out}"] for path in inputs),
    )
    for place, (code, shown) in zip(places, found[: len(places)], strict=True):
        assert code == ExitCode.CONFIG, (place, shown)
        assert f"output directory {place} cannot be " in shown
        assert "Permission denied" in shown
        assert "give another output_dir=" in shown
        assert "Traceback" not in shown
    for path, (code, shown) in zip(inputs, found[len(places) :], strict=True):
        assert code == ExitCode.CONFIG, (path, shown)
        assert f"{path} cannot be read: Permission denied; let this user read it" in shown
        assert "Traceback" not in shown
    assert not out.exists()


def output_directories(tmp_path: Path, data: Path) -> tuple[Path, ...]:
    """Directories of which none may be written."""
    for name, mode in (("readonly", 0o555), ("hidden", 0o000), ("made", 0o755)):
        (tmp_path / name).mkdir(mode=mode)
    made = tmp_path / "made" / "out"
    assert main([*JOB, f"data.path={data}", f"output_dir={made}"]) == ExitCode.DONE
    for path in [*made.rglob("*"), made]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return tmp_path / "readonly", tmp_path / "readonly" / "out", tmp_path / "hidden" / "out", made


def unreadable(tmp_path: Path, data: Path) -> tuple[Path, ...]:
    """Inputs of which none may be read."""
    files = {kind: tmp_path / f"hidden.{kind}" for kind in ("jsonl", "csv", "parquet", "arrow")}
    files["jsonl"].write_bytes(data.read_bytes())
    files["csv"].write_text("prompt\nhello\n")
    pq.write_table(ROWS, files["parquet"])
    pyarrow.feather.write_feather(ROWS, files["arrow"])
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (*files.values(), folder):
        path.chmod(0o000)
    return *files.values(), folder, folder / "rows.jsonl"


def test_a_file_system_that_is_read_only(tmp_path, data, own_mounts):
    disk = tmp_path / "disk"
    disk.mkdir()
    pipeline = f"{sys.executable} -m pipeline {' '.join(JOB)} data.path={data} output_dir={disk}/out"
    script = f"mount -t tmpfs none {disk} && mount -o remount,ro {disk} && {pipeline}"
    done = ended(tmp_path, *own_mounts, "sh", "-c", script)
    assert done.returncode == ExitCode.CONFIG, done.stderr
    assert f"output directory {disk / 'out'} cannot be used: Read-only file system; make it writable" in done.stderr
    assert "Traceback" not in done.stderr
