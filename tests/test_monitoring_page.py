"""docs/monitoring.md names what programs get: keys of a progress line and the summary, metrics, exit codes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline import PROJECT
from pipeline.api.runtime import Resources
from pipeline.monitor.display import Lines
from pipeline.monitor.snapshot import Snapshot
from pipeline.runs.job import run_job
from pipeline.settings import HookSettings
from tests.pipeline.runs.test_job import job

PAGE = (PROJECT / "docs/monitoring.md").read_text(encoding="utf-8")

OF_OTHER_RUNS = re.compile("_cache_|_cluster_|_(call|token|answer)_seconds$")
"""Metrics of runs with a model or with workers."""


def named(heading: str) -> set[str]:
    """What the table under `heading` names in its first column."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.+?) \|", section, re.M)
    return {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
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


def test_the_keys_of_the_summary_and_of_the_environment(folder):
    summary = json.loads((folder / "told.json").read_text())
    assert set(summary) | set(summary["rejects"][0]) == named("When it ends") | {"node", "kind", "reason"}
    variables = set(re.findall(r"^(PIPELINE_\w+)=", (folder / "told.json.env").read_text(), re.M))
    assert variables - set(os.environ) == set(re.findall(r"`(PIPELINE_\w+)`", PAGE))


def test_the_metrics(folder):
    text = (folder / "run.prom").read_text()
    written = set(re.findall(r"^# TYPE (\w+)", text, re.M)) | {"llama_batch_eta_seconds"}
    written -= {f"llama_batch_slot_{key}_total" for key in ("steps", "steps_used")}  # of the job's own operator
    assert written == {name for name in named("Prometheus") if not OF_OTHER_RUNS.search(name)}


def test_the_exit_codes_of_status():
    section = PAGE.partition("| exit code of `status` |")[2]
    assert re.findall(r"^\| (\d) \|", section, re.M) == ["0", "2", "4"]
