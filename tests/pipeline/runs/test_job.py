"""One run of one job: results, resume, refusal, exit codes, and what is left on disk."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline import PROJECT
from pipeline.api.errors import ConfigError, ExitCode
from pipeline.settings import NodeSettings
from tests.pipeline.squares import OPS, breaks, column, files, job, run


def test_a_run_leaves_rows_manifest_config_log_status_and_metrics(tmp_path, capsys):
    out = tmp_path / "out"
    assert run(job(out)) is ExitCode.DONE
    assert column(out, "y") == [x * x for x in range(45)]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["status"] == "done"
    assert manifest["counts"]["source_rows"] == manifest["counts"]["data_rows"] == 45
    assert [s["rows"] for s in manifest["shards"]] == [10, 10, 10, 10, 5]
    assert manifest["schema"] == {"data": {"row": "int64", "x": "int64", "y": "int64"}}
    assert json.loads((out / "status.json").read_text())["state"] == "done"
    assert "_target_" in (out / "config.yaml").read_text()
    (attempt,) = pq.read_table(out / "metrics/run.parquet").to_pylist()
    assert (attempt["attempt"], attempt["rows"], attempt["exit_code"], attempt["state"]) == (1, 45, 0, "done")
    assert json.loads(attempt["totals"]).keys() == {"slot_steps", "slot_steps_used", "peak_memory_mb"}
    assert {"numbers", "square", "write"} == set(pq.read_table(out / "metrics/stages.parquet")["node"].to_pylist())
    shown = capsys.readouterr().out
    counts = "input       45 rows done; output 45 rows\nrejects     none"
    assert shown.startswith("squares: done after ")
    assert shown.partition("\n")[2] == f"{counts}\nresults     {out}/data\n"


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, caplog):
    broken = tmp_path / "broken"
    square = {"fail_at": 27, "broken": str(broken), "bad": [4, 41]}
    settings: dict[str, Any] = {"square": square, "max_open_chunks": 1, "max_error_rate": 1.0}
    run(job(tmp_path / "whole", **settings))
    broken.touch()
    out = tmp_path / "out"
    assert run(job(out, **settings)) is ExitCode.FAILED
    assert json.loads((out / "manifest.json").read_text())["counts"]["chunks"] == 2
    assert "RuntimeError: the machine caught fire" in (out / "run.log").read_text()
    (out / "data/part-00002.parquet").write_bytes(b"renamed, but the process died before the commit")
    (out / "rejects/part-00003.parquet").write_bytes(b"of a chunk that has no rejects now")
    broken.unlink()
    with caplog.at_level(logging.INFO):
        assert run(job(out, **settings)) is ExitCode.DONE
    assert "resuming: 20 rows (2 chunks) are committed already" in caplog.text
    assert files(out) == files(tmp_path / "whole")
    assert json.loads((out / "manifest.json").read_text()) == json.loads((tmp_path / "whole/manifest.json").read_text())
    attempts = pq.read_table(out / "metrics/run.parquet").to_pylist()
    assert [(a["attempt"], a["state"], a["rows"]) for a in attempts] == [(1, "failed", 20), (2, "done", 25)]


def test_a_run_that_committed_nothing_is_replaced_without_asking(tmp_path):
    assert run(job(tmp_path / "out", square=breaks(tmp_path, 3))) is ExitCode.FAILED
    assert run(job(tmp_path / "out", seed=7)) is ExitCode.DONE
    assert column(tmp_path / "out", "y") == [x * x for x in range(45)]


def test_what_was_written_of_chunks_that_nobody_ended_is_removed(tmp_path):
    """Rejects of chunks 1 and 2 come to their writer before it is known that a node will have left."""
    settings = job(tmp_path, square={"bad": [3, 13, 23]}, max_error_rate=1.0)
    settings.nodes["leaves"] = NodeSettings({"_target_": f"{OPS}.LeavesLate"}, "square")
    settings.nodes["write"].inputs = ["leaves"]
    assert run(settings) is ExitCode.DONE
    assert sorted(files(tmp_path)) == ["data/part-00000.parquet", "rejects/part-00000.parquet"]


def test_a_run_that_lost_rows_is_never_taken_for_done(tmp_path):
    settings = job(tmp_path / "out")
    settings.nodes["square"] = NodeSettings({"_target_": f"{OPS}.Loses"}, "numbers")
    assert run(settings) is ExitCode.FAILED
    with pytest.raises(ConfigError, match=r"cannot be trusted: node 'square': 45 rows in .*\n.*overwrite=true"):
        run(settings)
    settings.overwrite = True
    assert run(settings) is ExitCode.FAILED


def test_overwrite_begins_anew_and_keeps_what_is_not_ours(tmp_path):
    out = tmp_path / "out"
    run(job(out))
    for name in ("completions.sqlite", "data/notes.txt"):
        (out / name).write_text("mine")
    assert run(job(out, rows=12, square={"add": 1}, overwrite=True)) is ExitCode.DONE
    assert column(out, "y") == [x * x + 1 for x in range(12)]
    assert sorted(p.name for p in (out / "data").iterdir()) == ["notes.txt", "part-00000.parquet", "part-00001.parquet"]
    assert (out / "completions.sqlite").read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_of_something_else_is_left_alone(tmp_path, overwrite):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"thesis.tex"):
        run(job(tmp_path, overwrite=overwrite))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_too_many_errors_are_exit_code_3_also_when_asked_again(tmp_path, capsys):
    settings: dict[str, Any] = {"square": {"bad": [1, 2, 3]}}
    assert run(job(tmp_path / "out", **settings)) is ExitCode.REJECTS
    shown = capsys.readouterr().out
    assert "3  error at square: unlucky number" in shown
    assert "max_error_rate=" in shown
    assert run(job(tmp_path / "out", **settings)) is ExitCode.REJECTS
    shown = capsys.readouterr().out
    assert "finished already: 42 rows in" in shown
    assert "exit code 3: 3 errors in 45 rows are more than max_error_rate=0.01 allows" in shown
    assert run(job(tmp_path / "out", **settings, max_error_rate=0.1)) is ExitCode.DONE
    rejects = pq.read_table(tmp_path / "out/rejects").to_pylist()
    assert [(r["row"], r["node"]) for r in rejects] == [(1, "square"), (2, "square"), (3, "square")]
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["rejects"] == [{"node": "square", "kind": "error", "reason": "unlucky number", "rows": 3}]


def test_a_source_that_cannot_seek_is_named_when_a_resume_needs_it(tmp_path):
    settings = job(tmp_path / "out", square=breaks(tmp_path), max_open_chunks=1)
    settings.nodes["numbers"].op = {"_target_": "tests.pipeline.ops.Count", "rows": 45}
    assert run(settings) is ExitCode.FAILED
    with pytest.raises(ConfigError, match="node 'numbers': Count has no seek"):
        run(settings)


def test_a_failed_run_ends_with_its_error(tmp_path, capfd):
    """On one terminal."""
    (tmp_path / "broken").touch()
    command = f"{sys.executable} -m pipeline job=squares.yaml 2>&1"
    (tmp_path / "squares.yaml").write_text(
        f"""
report: false
nodes:
  numbers: {{op: {{_target_: {OPS}.Numbers, rows: 45}}}}
  square: {{inputs: numbers, op: {{_target_: {OPS}.Square, fail_at: 27, broken: {tmp_path}/broken}}}}
  write: {{inputs: square, op: {{_target_: {OPS}.Parquet}}}}
"""
    )
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(PROJECT)}, check=False
    )
    assert done.returncode == 1
    lines = capfd.readouterr().out.splitlines()
    assert lines[-1].startswith("error: node 'square' failed: RuntimeError: the machine caught fire (row 27; /")
    assert len(lines) <= 10
    assert sum("caught fire" in line for line in lines) == 1
    assert "Traceback" in (tmp_path / "outputs/squares/run.log").read_text()


def test_the_log_says_when_an_attempt_begins_and_what_has_changed(tmp_path):
    square = breaks(tmp_path)
    run(job(tmp_path / "out", square=square, max_open_chunks=1))
    (tmp_path / "broken").unlink()
    run(job(tmp_path / "out", square=square, max_open_chunks=2))
    log = (tmp_path / "out/run.log").read_text()
    assert re.search(r"^\d{4}-\d\d-\d\dT[\d:.]{12}Z INFO +pipeline.runs.run: attempt 1 begins$", log, re.M)
    assert "attempt 2 begins, max_open_chunks: 1 -> 2\n" in log
    assert '+00:00"' in (tmp_path / "out/status.json").read_text()
