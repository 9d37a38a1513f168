"""One run at a time, whoever holds the lock is named, and no decision is taken by the clock."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline import PROJECT
from pipeline.api.errors import ConfigError, ExitCode
from pipeline.run_dir.state import RunState
from pipeline.settings import JobSettings
from tests.pipeline import squares
from tests.pipeline.command_line import command
from tests.pipeline.squares import OPS, breaks, files, run

YAML = """
max_open_chunks: 1
progress: none
output_dir: {out}
nodes:
  numbers: {{op: {{_target_: {ops}.Numbers, rows: 45}}}}
  square: {{inputs: numbers, op: {{_target_: {ops}.WaitAt, at: 27, flag: {flag}}}}}
  write: {{inputs: square, op: {{_target_: {ops}.Parquet}}}}
"""


def job(directory: Path, flag: Path) -> JobSettings:
    return squares.job(
        directory, square={"_target_": f"{OPS}.WaitAt", "at": 27, "flag": str(flag)}, name="waits", max_open_chunks=1
    )


def test_a_second_run_is_kept_out_by_a_live_one_and_let_in_when_that_was_killed(tmp_path, caplog):
    out, flag = tmp_path / "out", tmp_path / "flag"
    flag.touch()
    (tmp_path / "waits.yaml").write_text(YAML.format(out=out, ops=OPS, flag=flag))
    env = {**os.environ, "PYTHONPATH": str(PROJECT)}
    first = subprocess.Popen(command("job=waits.yaml"), cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    try:
        while not Path(f"{flag}.reached").exists():
            assert first.poll() is None
            time.sleep(0.01)
        holder = rf"pid {first.pid} on {socket.gethostname()}, since 20\d\d-\d\d-\d\dT[\d:]+"
        named = rf"another run \({holder}\) works in {out}"
        with pytest.raises(ConfigError, match=named) as refused:
            run(job(out, tmp_path / "no flag"))
        assert refused.value.exit_code is ExitCode.CONFIG
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    flag.unlink()
    with caplog.at_level("INFO"):
        assert run(job(out, flag)) is ExitCode.DONE
    assert f"an earlier run here (pid {first.pid}" in caplog.text
    assert "resuming: 20 rows (2 chunks) are committed already" in caplog.text


def test_a_clock_that_was_set_back_changes_nothing(tmp_path):
    """All that an earlier attempt wrote is from the future: no time is compared with another."""
    out, broken = tmp_path / "out", tmp_path / "broken"
    given: dict[str, Any] = {"square": breaks(tmp_path), "max_open_chunks": 1}
    assert run(squares.job(out, **given)) is ExitCode.FAILED
    with closing(RunState(out / "state.sqlite")) as state, state._transaction():
        state._db.execute("UPDATE attempts SET started_at = '2999-01-01T00:00:00+00:00'")
    (out / ".lock").write_text('{"pid": 1, "host": "here", "since": "2999-01-01T00:00:00"}')
    for path in out.rglob("*"):
        os.utime(path, (32_472_144_000, 32_472_144_000))
    broken.unlink()
    assert run(squares.job(out, **given)) is run(squares.job(tmp_path / "whole", **given)) is ExitCode.DONE
    assert files(out) == files(tmp_path / "whole")
