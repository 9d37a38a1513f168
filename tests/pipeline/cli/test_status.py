"""`python -m pipeline status`: what another terminal sees of a run that runs, is done, failed or was killed."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.main import main
from pipeline.results.reader import read_results
from pipeline.run_dir.lock import LOCK_FILE, holder, locked
from pipeline.run_dir.state import RunState
from pipeline.settings import JobSettings, NodeSettings
from tests.pipeline.squares import OPS, breaks, job, run


def waiting(directory: Path, flag: Path, **settings: Any) -> JobSettings:
    """A job of 45 rows that stands still at row 25 while `flag` is there."""
    found = job(directory, max_open_chunks=1, **settings)
    found.nodes["wait"] = NodeSettings({"_target_": f"{OPS}.WaitAt", "at": 25, "flag": str(flag)}, "square")
    found.nodes["write"].inputs = ["wait"]
    return found


def values(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "status.json").read_text())
    return found


def test_of_a_run_that_is_done(tmp_path, capsys):
    run(job(tmp_path / "out", square={"bad": [3]}, max_error_rate=0.1))
    capsys.readouterr()
    assert main(["status", str(tmp_path / "out")]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert re.search(r"squares  done after \d+s, exit code 0, attempt 1\n", shown)
    assert "45/45 rows 100.0%" in shown
    assert "rejects   1 errors, 0 filtered" in shown
    (square,) = [line.split() for line in shown.splitlines() if line.startswith("square ")]
    assert square[1:4] == ["45", "44", "1"]


def test_a_step_is_one_line_and_its_nodes_are_shown_on_request(tmp_path, capsys):
    settings = job(tmp_path / "out", square={"bad": [3, 4]}, max_error_rate=0.1)
    settings.nodes["square"].step = "ask"
    more = {"_target_": "operators.filter.Filter", "where": "x < 40"}
    settings.nodes["ask"] = NodeSettings(more, ["square"], step="ask")
    settings.nodes["write"].inputs = ["ask"]
    run(settings)

    def shown(*options: str) -> dict[str, list[str]]:
        capsys.readouterr()
        assert main(["status", str(tmp_path / "out"), *options]) == ExitCode.DONE
        lines = capsys.readouterr().out.partition("\nnode ")[2].splitlines()[1:-1]
        return {line.split()[0]: line.split()[1:4] for line in lines}

    whole = {"numbers": ["45", "45", "0"], "write": ["38", "38", "0"]}
    assert shown() == {**whole, "ask": ["45", "38", "7"]}
    assert shown("--nodes") == {**whole, "square": ["45", "43", "2"], "ask": ["43", "38", "5"]}


def test_of_a_run_that_failed(tmp_path, capsys):
    run(job(tmp_path / "out", square=breaks(tmp_path, 25), max_open_chunks=1))
    assert main(["status", str(tmp_path / "out")]) == ExitCode.INTERRUPTED
    shown = capsys.readouterr().out
    assert "not running; the same command resumes (it failed, exit code 1: see run.log" in shown
    assert "committed 20 rows in 2 chunks" in shown


@pytest.mark.parametrize("text", [None, "", '{"state": "done"}'])
def test_of_a_run_that_has_said_nothing_yet(tmp_path, capsys, text):
    RunState(tmp_path / "state.sqlite").close()
    if text is not None:
        (tmp_path / "status.json").write_text(text)
    assert main(["status", str(tmp_path)]) == ExitCode.INTERRUPTED
    assert "not running, and it has not said how far it came" in capsys.readouterr().out
    with locked(tmp_path):
        assert main(["status", str(tmp_path)]) == ExitCode.DONE
    assert "starting" in capsys.readouterr().out


def test_where_there_is_no_run(tmp_path, capsys):
    for arguments in ([str(tmp_path)], [str(tmp_path / "nowhere")], [], ["a", "b"], ["--loud"]):
        assert main(["status", *arguments]) == ExitCode.CONFIG
    assert list(tmp_path.iterdir()) == []
    assert "it has no state.sqlite" in capsys.readouterr().err


def test_json_is_the_file_as_it_is(tmp_path, capsys):
    run(job(tmp_path / "out"))
    capsys.readouterr()
    assert main(["status", str(tmp_path / "out"), "--json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out) == values(tmp_path / "out")


def test_tokens_are_those_of_all_attempts(tmp_path, capsys):
    """At least 5 for each of the 45 rows, of which the second attempt reads 25."""
    settings = job(tmp_path / "out", square=breaks(tmp_path, 25), max_open_chunks=1)
    settings.nodes["picky"] = NodeSettings({"_target_": "tests.pipeline.target_ops.Picky"}, "square")
    settings.nodes["write"].inputs = ["picky"]
    assert run(settings) is ExitCode.FAILED
    (tmp_path / "broken").unlink()
    assert run(settings) is ExitCode.DONE
    capsys.readouterr()
    assert main(["status", str(tmp_path / "out")]) == ExitCode.DONE
    tokens = sum(int(counts["tokens_out"]) for counts in values(tmp_path / "out")["counters"].values())
    assert tokens >= 5 * 45
    assert f"tokens    0 in, {tokens:,} out\n" in capsys.readouterr().out


def test_counters_of_another_run_are_not_taken_over(tmp_path):
    """As where state.sqlite was lost and made again beside an old status.json."""
    settings = job(tmp_path / "out", square=breaks(tmp_path, 25), max_open_chunks=1)
    run(settings)
    (tmp_path / "out/status.json").write_text(json.dumps({**values(tmp_path / "out"), "run_id": "another"}))
    (tmp_path / "broken").unlink()
    run(settings)
    assert values(tmp_path / "out")["counters"]["square"]["rows_in"] == 25


def test_who_looks_keeps_no_run_out(tmp_path):
    """The lock is shared for a moment by who looks: a run that begins just then waits for that moment."""
    (tmp_path / LOCK_FILE).touch()
    with (tmp_path / LOCK_FILE).open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        with locked(tmp_path, wait=lambda _: fcntl.flock(looking, fcntl.LOCK_UN)):
            assert holder(tmp_path)
            with pytest.raises(ConfigError, match="another run"), locked(tmp_path):
                pass
    assert holder(tmp_path) is None


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        ("done", ExitCode.DONE, "done"),
        ("failed", ExitCode.INTERRUPTED, "not running; the same command resumes (it failed: see run.log)"),
    ],
)
def test_of_a_run_of_another_version(tmp_path, capsys, status, code, says):
    """Whose status.json has other keys."""
    out = tmp_path / "out"
    run(job(out, square={"bad": [3]}, max_error_rate=0.1))
    capsys.readouterr()
    older = {key: value for key, value in values(out).items() if key not in ("recalled", "counters")}
    (out / "status.json").write_text(json.dumps(older))
    manifest = (out / "manifest.json").read_text()
    (out / "manifest.json").write_text(manifest.replace('"status": "done"', f'"status": "{status}"'))
    assert main(["status", str(out)]) == code
    shown = capsys.readouterr().out
    assert f"squares  {says}; status.json is lost or of another version" in shown
    assert "committed 45 rows in 5 chunks" in shown
    assert "rejects   1 errors, 0 filtered" in shown


def test_of_a_run_that_runs_and_one_that_was_killed_whose_state_says_what_is_committed(tmp_path, capsys):
    """status.json is as old as its last heartbeat, and a killed run leaves a log beside state.sqlite."""
    out, killed, flag = tmp_path / "out", tmp_path / "killed", tmp_path / "flag"
    flag.touch()
    ended: list[ExitCode] = []
    thread = threading.Thread(target=lambda: ended.append(run(waiting(out, flag))))
    thread.start()
    try:
        while not Path(f"{flag}.reached").exists() or values(out)["committed_rows"] < 20:
            assert thread.is_alive()
        assert holder(out)
        assert main(["status", str(out)]) == ExitCode.DONE
        shown = capsys.readouterr().out
        shutil.copytree(out, killed)
    finally:
        flag.unlink()
        thread.join()
    for says in ("squares  running: pid", "committed 20 rows in 2 chunks", "/45 rows", " left"):
        assert says in shown
    assert (ended, holder(out)) == ([ExitCode.DONE], None)
    old = {**values(killed), "committed_rows": 0, "committed_chunks": 0, "accounts": {}}
    (killed / "status.json").write_text(json.dumps(old))
    assert (killed / "state.sqlite-wal").exists()
    before = {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["status", str(killed)]) == ExitCode.INTERRUPTED
    shown = capsys.readouterr().out
    assert "committed 20 rows in 2 chunks" in shown
    assert re.search(r"it was killed; last heartbeat \d+s ago, attempt 1", shown)
    for directory in (killed, out):
        names = sorted(path.name for path in directory.iterdir())
        read_results(directory)
        assert sorted(path.name for path in directory.iterdir()) == names
    assert {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()} == before
