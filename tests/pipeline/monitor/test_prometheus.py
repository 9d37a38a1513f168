"""The file for Prometheus keeps to the text format, and its counters never fall."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.api.runtime import Resources
from pipeline.monitor.prometheus import exposition
from pipeline.runs.job import run_job
from pipeline.settings import JobSettings
from tests.pipeline.runs.test_job import data, job

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
HELP = re.compile(rf"# HELP ({NAME}) ((?:[^\\\n]|\\\\|\\n)+)")
TYPE = re.compile(rf"# TYPE ({NAME}) (counter|gauge|histogram)")
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
SAMPLE = re.compile(rf"({NAME})\{{({LABEL}(?:,{LABEL})*)\}} (\S+)")

Series = dict[tuple[str, str], float]


def parsed(text: str) -> tuple[Series, dict[str, str]]:
    """Samples by name and labels, and the type of each family. Fails at what the format does not allow."""
    assert text.endswith("\n")
    samples: Series = {}
    types: dict[str, str] = {}
    lines = iter(text.removesuffix("\n").split("\n"))
    helped = family = ""
    for line in lines:
        if match := HELP.fullmatch(line):
            helped = match[1]
            assert helped not in types, "a family has one place in the file"
        elif match := TYPE.fullmatch(line):
            assert match[1] == helped
            family = match[1]
            types[family] = match[2]
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            suffixes = ("_bucket", "_sum", "_count") if types[family] == "histogram" else ("",)
            assert match[1] in [family + suffix for suffix in suffixes]
            key = (match[1], match[2])
            assert key not in samples
            samples[key] = float(match[3])
            assert math.isfinite(samples[key])
            assert (match[1] == f"{family}_bucket") == (re.search(r'(^|,)le="', match[2]) is not None)
    assert all((name.endswith("_total")) == (kind == "counter") for name, kind in types.items())
    return samples, types


def kept(directory: Path, **settings: Any) -> JobSettings:
    return job(directory / "out", prometheus_file=str(directory / "run.prom"), **settings)


def read(directory: Path) -> tuple[Series, dict[str, str]]:
    return parsed((directory / "run.prom").read_text(encoding="utf-8"))


def test_the_file_of_a_run_that_is_done(tmp_path):
    assert run_job(kept(tmp_path, square={"bad": [3]}, max_error_rate=0.1), Resources()) is ExitCode.DONE
    samples, types = read(tmp_path)
    assert samples["llama_batch_stage_rows_in_total", 'job="squares",node="square"'] == 45
    assert samples["llama_batch_stage_rows_rejected_total", 'job="squares",node="square"'] == 1
    assert samples["llama_batch_rows_rejected", 'job="squares",kind="error"'] == 1
    assert samples["llama_batch_rows_committed", 'job="squares"'] == 45
    assert samples["llama_batch_running", 'job="squares"'] == samples["llama_batch_exit_code", 'job="squares"'] == 0
    assert ("llama_batch_eta_seconds", 'job="squares"') not in samples
    assert {"counter", "gauge"} == set(types.values())
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("run.prom")] == ["run.prom"]


def test_counters_go_on_over_attempts_and_never_fall(tmp_path):
    broken = tmp_path / "broken"
    broken.touch()
    settings = kept(tmp_path, square={"fail_at": 25, "broken": str(broken)}, max_open_chunks=1)
    assert run_job(settings, Resources()) is ExitCode.FAILED
    before, _ = read(tmp_path)
    assert before["llama_batch_exit_code", 'job="squares"'] == 1
    broken.unlink()
    assert run_job(settings, Resources()) is ExitCode.DONE
    after, types = read(tmp_path)
    counters = [key for key in before if types[key[0]] == "counter"]
    assert len(counters) > 10
    assert all(after[key] >= before[key] for key in counters)
    assert after["llama_batch_stage_rows_out_total", 'job="squares",node="write"'] == 45
    assert after["llama_batch_attempt", 'job="squares"'] == 2
    settings.overwrite = True
    assert run_job(settings, Resources()) is ExitCode.DONE
    anew, _ = read(tmp_path)
    assert anew["llama_batch_stage_rows_in_total", 'job="squares",node="square"'] == 45


def test_names_that_need_it_are_escaped_and_while_it_runs_what_is_not_known_is_not_said(tmp_path):
    run_job(job(tmp_path / "out"), Resources())
    status = json.loads((tmp_path / "out/status.json").read_text())
    samples, _ = parsed(exposition({**status, "job": 'a "b\\c"\nd'}))
    assert ("llama_batch_rows_finished", r'job="a \"b\\c\"\nd"') in samples
    running = {**status, "state": "running", "exit_code": None, "rows_total": None, "eta_s": 12.5}
    samples, types = parsed(exposition(running))
    assert samples["llama_batch_running", 'job="squares"'] == 1
    assert samples["llama_batch_eta_seconds", 'job="squares"'] == 12.5
    assert {"llama_batch_exit_code", "llama_batch_rows_expected"} & types.keys() == set()


def test_a_place_that_is_not_there_is_refused_before_the_run(tmp_path):
    with pytest.raises(ConfigError, match="there is no directory"):
        run_job(job(tmp_path / "out", prometheus_file=str(tmp_path / "nowhere/run.prom")), Resources())
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match=r"end in \.prom"):
        job(tmp_path / "out", prometheus_file="run.txt")


def test_a_file_that_cannot_be_written_costs_the_run_nothing(tmp_path, caplog):
    (tmp_path / "run.prom").mkdir()
    assert run_job(kept(tmp_path), Resources()) is ExitCode.DONE
    assert caplog.text.count("prometheus_file is not kept up to date") == 1
    assert run_job(job(tmp_path / "plain"), Resources()) is ExitCode.DONE
    assert data(tmp_path / "out") == data(tmp_path / "plain")
