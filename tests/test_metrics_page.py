"""docs/metrics.md names every column of the metrics as it is written, and its queries answer on a real run.
docs/monitoring.md names what programs get: keys of a progress line and the summary, metrics, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from operators.engine.loop.step_log import STEPS_SCHEMA
from operators.generation.row_metrics import ROWS_SCHEMA
from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.api.runtime import Resources
from pipeline.cli.main import main
from pipeline.monitor.display import Lines
from pipeline.monitor.snapshot import Snapshot
from pipeline.run_dir.metrics_table import HISTOGRAMS_SCHEMA, STAGES_SCHEMA
from pipeline.runs.ending import RUN_SCHEMA
from pipeline.runs.run import run_job
from pipeline.settings import HookSettings
from tests.pipeline.squares import job

PAGE = (PROJECT / "docs/metrics.md").read_text(encoding="utf-8")
SCHEMAS = {
    "stages": STAGES_SCHEMA,
    "steps": STEPS_SCHEMA,
    "rows": ROWS_SCHEMA,
    "histograms": HISTOGRAMS_SCHEMA,
    "run": RUN_SCHEMA,
}
TABLE = re.compile(r"<!-- schema: (\w+) -->\n\|.*\n\|.*\n((?:\|.*\n)+)")
QUERY = re.compile(r"### (.+?)\n.*?```python\n(.*?)```", re.S)
QUERIES = dict(QUERY.findall(PAGE))
NAMED = {name for line in re.findall(r"^\| (`.+?) \|", PAGE, re.M) for name in re.findall(r"`([\w/]+)`", line)}
JOB = """
defaults: [{override /flow: generate_checked}]
data: {path: "${project:jobs/data/quickstart.jsonl}", limit: 24}
model: {system: "One short question at a time; answer it in as few words as you can and say no more than that."}
sampling: {max_tokens: 24}
nodes:
  keep: {inputs: check, op: {_target_: operators.filter.Filter, where: correct}}
  write: {inputs: keep}
"""
SETTINGS = ("runtime.slots=4", "metrics_interval_s=0.05", "progress=none", "output_dir=outputs/quickstart")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where outputs/quickstart is a finished run with rejects."""
    here = tmp_path_factory.mktemp("metrics")
    (here / "checked.yaml").write_text(JOB)
    with contextlib.chdir(here):
        assert main(["job=checked.yaml", *SETTINGS]) == ExitCode.DONE
    assert list((here / "outputs/quickstart/rejects").iterdir())
    return here


@pytest.fixture
def answers(folder, monkeypatch):
    """What a query of the page says of that run."""
    monkeypatch.chdir(folder)

    def ask(question: str) -> pl.DataFrame:
        names: dict[str, Any] = {}
        exec(compile(QUERIES[question], question, "exec"), names)
        answer = names["answer"]
        assert isinstance(answer, pl.DataFrame)
        assert len(answer)
        return answer

    return ask


def totals(folder: Path) -> dict[str, float]:
    (attempt,) = pq.read_table(folder / "outputs/quickstart/metrics/run.parquet").to_pylist()
    found: dict[str, float] = json.loads(attempt["totals"])
    return found


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_columns_of_a_table_are_those_that_are_written(name, folder):
    table = dict(TABLE.findall(PAGE))[name]
    columns = [tuple(cell.strip() for cell in line.split("|")[1:5]) for line in table.splitlines()]
    assert [(c[0], c[1]) for c in columns] == [(f"`{f.name}`", str(f.type)) for f in SCHEMAS[name]]
    assert all(len(c[3]) > 5 for c in columns)
    written = pq.read_schema(folder / f"outputs/quickstart/metrics/{name}.parquet")
    assert written.names == ["attempt", "worker", *SCHEMAS[name].names]


def test_every_key_of_the_totals_is_explained(folder):
    unexplained = {key.rpartition("/")[2] for key in totals(folder)} - {name.rpartition("/")[2] for name in NAMED}
    assert not unexplained, "explain these in docs/metrics.md, among the keys of `totals`"


def test_there_are_five_queries_and_each_is_tried_below():
    assert len(QUERIES) == 5


def test_the_bottleneck_is_the_stage_that_is_busiest(answers):
    answer = answers("What is the bottleneck?")
    assert {"read", "generate", "write", "generate/decode"} <= set(answer["node"])
    assert answer["busy_s"].is_sorted(descending=True)
    whole = answer.select(pl.sum_horizontal("busy_s", "starved_s", "blocked_s")).to_series()
    assert whole.is_between(0.99, 1.01).all()


def test_the_slots_are_judged_by_every_step_that_decodes(answers):
    answer = answers("What would more slots bring?")
    assert answer["rows"].is_between(1, 4).all()
    assert (answer["tokens_per_s"] > 0).all()


def test_slow_rows_come_first_and_none_is_missing(answers):
    answer = answers("Which rows were slow?")
    assert sorted(answer["row"]) == list(range(24))
    assert answer["slot_s"].is_sorted(descending=True)


def test_reuse_is_what_the_engine_counted(answers, folder):
    (answer,) = answers("How much of the prompts was not computed?").to_dicts()
    assert answer["completions"] == 24
    assert answer["shared_tokens"] == totals(folder)["shared_tokens"] > 0
    assert 0 < answer["reuse"] < 1


def test_what_rejects_cost_and_what_was_kept_is_all_that_was_made(answers, folder):
    answer = answers("What did rejects cost?")
    (attempt,) = pq.read_table(folder / "outputs/quickstart/metrics/run.parquet").to_pylist()
    assert answer["completion_tokens"].sum() == attempt["tokens_out"]
    assert set(answer["by"]) == {None, "keep"}
    assert answer.filter(by="keep")["rows"].item() == attempt["rejects_filtered"]


MONITORING = (PROJECT / "docs/monitoring.md").read_text(encoding="utf-8")

OF_OTHER_RUNS = re.compile("_cache_|_cluster_|_(call|token|answer)_seconds$")
"""Metrics of runs with a model or with workers."""


def named(heading: str) -> set[str]:
    """What the table under `heading` names in its first column."""
    section = MONITORING.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.+?) \|", section, re.M)
    return {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)}


@pytest.fixture(scope="module")
def watched(tmp_path_factory) -> Path:
    """A finished run in `out` with all that is told about it: run.prom, told.json."""
    here = tmp_path_factory.mktemp("watched")
    hook = HookSettings(["/bin/sh", "-c", 'cat > "$0"; env > "$0.env"', str(here / "told.json")])
    settings = job(here / "out", square={"bad": [3]}, on_finish=hook, prometheus_file=str(here / "run.prom"))
    run_job(settings, Resources())
    return here


def test_the_keys_of_a_progress_line(caplog):
    idle: dict[str, Any] = dict.fromkeys(Snapshot.__dataclass_fields__, 0)
    lines = Lines()
    with caplog.at_level("INFO"):
        lines.show(Snapshot(**{**idle, "elapsed_s": 10.0, "statuses": ("slots 3/4",), "nodes": (), "queue": None}))
    (record,) = caplog.records
    assert set(record.__dict__["fields"]) == named("For programs")


def test_the_keys_of_the_summary_and_of_the_environment(watched):
    summary = json.loads((watched / "told.json").read_text())
    assert set(summary) | set(summary["rejects"][0]) == named("When it ends") | {"node", "kind", "reason"}
    variables = set(re.findall(r"^(PIPELINE_\w+)=", (watched / "told.json.env").read_text(), re.M))
    assert variables - set(os.environ) == set(re.findall(r"`(PIPELINE_\w+)`", MONITORING))


def test_the_metrics(watched):
    text = (watched / "run.prom").read_text()
    written = set(re.findall(r"^# TYPE (\w+)", text, re.M)) | {"llama_batch_eta_seconds"}
    written -= {f"llama_batch_slot_{key}_total" for key in ("steps", "steps_used")}  # of the job's own operator
    assert written == {name for name in named("Prometheus") if not OF_OTHER_RUNS.search(name)}


def test_the_exit_codes_of_status():
    section = MONITORING.partition("| exit code of `status` |")[2]
    assert re.findall(r"^\| (\d) \|", section, re.M) == ["0", "2", "4"]
