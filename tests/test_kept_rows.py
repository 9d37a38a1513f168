"""on_error: keep, in whole jobs: every row comes back in its place, whatever ends the run or computes it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from pipeline import PROJECT, Job, Result
from pipeline import run as run_in_python
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.operators.endpoint.fault_server import Fault, FaultServer
from tests.pipeline.cluster.thread_pool import workers_in_threads
from tests.pipeline.squares import files
from tests.sets import often

pytestmark = pytest.mark.slow("runs whole jobs with the model that ships")

ROWS = 24
JOB = """
defaults: [override /model: tiny]
data: {path: rows.jsonl}
chunk_rows: 6
sampling: {max_tokens: 18, temperature: 0.9}
runtime: {slots: 4}
steps:
  who: {prompt: "Invent a person. {{ text }}", schema: {name: string, age: int}, KEEP, keep: who_age % 4 <> 0}
  half: {op: {_target_: operators.map.Map, columns: {half: "CAST(number AS INT) / 2"}}, KEEP}
  reply: {prompt: "Greet {{ who_name }}.", n: 2, sampling: {max_tokens: 6}, KEEP}
"""
KEPT = JOB.replace("KEEP", "on_error: keep")
STEPS = ("who", "half", "reply")


def command(folder: Path, out: str, *settings: str, job: str = KEPT) -> list[str]:
    (folder / "job.yaml").write_text(job, encoding="utf-8")
    rows = [{"text": f"It is number {i}.", "number": "x" if i % 7 == 0 else str(i)} for i in range(ROWS)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    more = (f"data.path={folder}/rows.jsonl", f"output_dir={folder / out}", "progress=none", *settings)
    return [f"job={folder / 'job.yaml'}", *more]


def rows_of(directory: Path, kind: str = "data") -> list[dict[str, Any]]:
    return [row for path in sorted((directory / kind).iterdir()) for row in pq.read_table(path).to_pylist()]


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    assert main(command(folder, "out")) == ExitCode.REJECTS
    return folder / "out"


def test_every_row_comes_back_in_order_with_its_first_reason(kept, tmp_path):
    """Compared with a job that has only the first step, and rejects."""
    first = JOB.split("  half:")[0].replace("KEEP, ", "")
    assert main(command(tmp_path, "out", "max_error_rate=1", job=first)) == ExitCode.DONE
    fine = {row["row"]: row for row in rows_of(tmp_path / "out")}
    rejects = {row["row"]: row for row in rows_of(tmp_path / "out", "rejects")}
    assert {r["kind"] for r in rejects.values()} == {"error", "filtered"}
    rows = rows_of(kept)
    assert [row["row"] for row in rows] == sorted(row["row"] for row in rows)
    filtered = {row["row"] for row in rows_of(kept, "rejects")}
    assert filtered == {row for row, r in rejects.items() if r["kind"] == "filtered"}
    assert {row["row"] for row in rows} == set(range(ROWS)) - filtered
    for row in rows:
        if (reject := rejects.get(row["row"])) is None:
            assert {name: row[name] for name in fine[row["row"]]} == fine[row["row"]]
            assert row["who_error"] is None
            assert row["reply"] is not None
        else:
            assert row["who_error"] == reject["reason"]
            assert row["who"] is row["who_name"] is row["who_age"] is row["reply"] is None
            assert row["reply_error"].startswith("template: prints a null")
            assert row["lineage"] is None
        assert (row["half"] is None) == (row["half_error"] is not None) == (row["row"] % 7 == 0)


DRAWS = {"max_tokens": 14, "temperature": 1.0}
KINDS: dict[str, dict[str, Any]] = {
    "choice": {"prompt": "{{ maybe }}", "choices": ["a", "b"], "columns": ["finish_reason", "prompt_text"]},
    "dropped": {"prompt": "{{ maybe }}", "schema": {"a": "string", "b": "int"}, "drop": "it_b > 5", "sampling": DRAWS},
    "extracted": {"prompt": "{{ text }}", "extract": "{{ completion.split(' ')[1] }}", "sampling": DRAWS},
    "messages": {"messages": "turns", "writes": "user"},
    "scored": {"prompt": "Reverse {{ text }}.", "score": [0, 9], "columns": ["completion"], "sampling": DRAWS},
    "several": {"prompt": "{{ maybe }}", "n": 3, "schema": {"a": "string", "b": "int"}, "sampling": DRAWS},
    "some": {"prompt": "{{ maybe }}", "where": "text <> 'number 4'", "regex": "[0-9]{3}"},
}


@pytest.mark.parametrize("kind", often(KINDS, "several"))
def test_each_kind_of_step_keeps_what_it_would_reject(tmp_path, kind):
    turns = json.dumps([{"role": "user", "content": "Hello."}])
    rows = [
        {"text": f"number {i}", "maybe": f"m{i}" if i % 4 else None, "turns": turns if i % 3 else None}
        for i in range(20)
    ]

    def made(on_error: str) -> Result:
        job = Job("j", model="tiny", sampling={"max_tokens": 6}, max_error_rate=1.0, chunk_rows=7)
        job = job.step("it", **KINDS[kind], on_error=on_error)
        return run_in_python(job, rows=rows, progress="none", output_dir=str(tmp_path / on_error))

    def identity(row: dict[str, Any]) -> tuple[int, list[int]]:
        return row["row"], row.get("lineage") or []

    kept, rejected = made("keep"), made("fail")
    found = kept.rows().collect().to_dicts()
    failed = [row for row in found if row["it_error"] is not None]
    assert found == sorted(found, key=identity)
    assert rejected.rows().collect().equals(kept.rows().filter(pl.col("it_error").is_null()).drop("it_error").collect())
    errors = rejected.rejects().filter(pl.col("kind") == "error").collect().to_dicts()
    reasons = [(identity(row), row["it_error"]) for row in failed]
    assert sorted(reasons) == sorted((identity(reject), reject["reason"]) for reject in errors)
    new = found[0].keys() - {*rows[0], "row", "lineage", "it_error"}
    assert failed
    assert all(row[name] is None for row in failed for name in new)
    assert (kept.counts["kept_with_error"], kept.counts["error_rejects"]) == (len(failed), 0)
    assert kept.counts["filtered_rejects"] == rejected.counts["filtered_rejects"]


def test_summary_manifest_and_python_count_them_apart(kept, tmp_path, capsys):
    rows = rows_of(kept)
    failed = {(name, row["row"]) for row in rows for name in STEPS if row[f"{name}_error"] is not None}
    errors = Counter(name for name, _ in failed)  # `reply` makes two rows of each, behind the others' errors
    manifest = json.loads((kept / "manifest.json").read_text())
    assert manifest["counts"]["kept_with_error"] == errors.total()
    assert manifest["counts"]["error_rejects"] == 0
    assert manifest["counts"]["source_rows"] == ROWS
    by_step: Counter[str] = Counter()
    for counted in manifest["rejects"]:
        if counted["kind"] == "kept":
            by_step[counted["node"].partition("_")[0]] += counted["rows"]
    assert by_step == errors
    totals = json.loads(pq.read_table(kept / "metrics/run.parquet")["totals"][-1].as_py())
    assert totals["kept_with_error"] == errors.total()
    assert main(["report", str(kept)]) == ExitCode.DONE
    assert "rows kept with an error" in (kept / "report.html").read_text(encoding="utf-8")
    assert main(command(kept.parent, "out")) == ExitCode.REJECTS
    said = capsys.readouterr().out
    assert f"exit code 3: {errors.total()} errors in {ROWS} rows" in said
    assert main(command(kept.parent, "out", "max_error_rate=3")) == ExitCode.CONFIG


@pytest.mark.parametrize("point", often(["shard-renamed:3", "state-committing:4"], "shard-renamed:3"))
def test_a_run_that_was_killed_ends_as_one_that_was_not(kept, tmp_path, point, capsys):
    environment = os.environ | {"PIPELINE_FAILPOINT": point}
    killed = [sys.executable, "-m", "pipeline", *command(tmp_path, "out")]
    assert subprocess.run(killed, env=environment, cwd=PROJECT, check=False).returncode == -9
    assert main(command(tmp_path, "out")) == ExitCode.REJECTS
    assert files(tmp_path / "out") == files(kept)
    before, now = (json.loads((d / "manifest.json").read_text())["rejects"] for d in (kept, tmp_path / "out"))
    assert before == now
    errors = sum(counted["rows"] for counted in now if counted["kind"] == "kept")
    said = capsys.readouterr().out
    assert f"kept        {errors} with an error" in said
    assert "kept at who: cut by max_tokens=18 before the JSON was complete" in said  # the number is that of all rows


def test_workers_and_slots_change_no_byte(kept, tmp_path):
    with workers_in_threads():
        several = ("cluster=processes", "cluster.workers=2", "cluster.piece_rows=5")
        assert main(command(tmp_path, "several", *several)) == ExitCode.REJECTS
    assert main(command(tmp_path, "one", "runtime.slots=1")) == ExitCode.REJECTS
    assert files(tmp_path / "several") == files(tmp_path / "one") == files(kept)
    counted = [json.loads((d / "manifest.json").read_text())["rejects"] for d in (kept, tmp_path / "several")]
    assert counted[0] == counted[1]


def test_python_and_a_dry_run_know_it(tmp_path, capsys):
    job = Job("who", model="tiny", max_error_rate=1.0).step("who", prompt="{{ text }}", on_error="keep", score=[1, 5])
    result = run_in_python(job, rows=[{"text": "a"}, {"text": None}], progress="none", output_dir=str(tmp_path / "out"))
    assert result.rows().collect()["who_error"].null_count() < 2
    assert repr(result).startswith(
        f"<Result of who: 2 rows ({result.counts['kept_with_error']} with an error), 0 errors"
    )
    assert main(command(tmp_path, "new", "dry_run=true")) == ExitCode.DONE
    said = capsys.readouterr().out
    assert re.search(r"half: \d of \d+ rows of the sample are kept with an error: \d x", said)
    assert "who_error: string" in said


def test_a_row_that_a_server_refuses_stays(tmp_path):
    def faults(number: int, body: dict[str, Any]) -> Fault | None:
        return Fault(400, {"error": {"message": "not this"}}) if body["messages"][0]["content"] == "b" else None

    with FaultServer(faults) as server:
        job = Job("ask", {"model.url": server.url}, model="endpoint", max_error_rate=1.0).step(
            "it", prompt="{{ text }}", on_error="keep"
        )
        rows = [{"text": "a"}, {"text": "b"}, {"text": None}, {"text": "c"}]
        result = run_in_python(job, rows=rows, progress="none", output_dir=str(tmp_path / "out"))
    found = result.rows().collect().to_dicts()
    assert [row["text"] for row in found] == ["a", "b", None, "c"]
    assert [row["it"] is None for row in found] == [False, True, True, False]
    assert "not this" in found[1]["it_error"]
    assert "prints a null" in found[2]["it_error"]


def test_a_resume_under_another_on_error_is_refused_and_names_the_step(kept, capsys):
    assert main(command(kept.parent, "out", "steps.who.on_error=fail")) == ExitCode.CONFIG
    assert '  steps.who.on_error: "keep" -> "fail"\n' in capsys.readouterr().err
