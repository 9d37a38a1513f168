"""The file for Prometheus keeps to the text format, and its counters never fall. Hit rates and durations of a run that
failed and was resumed: tables, status, Prometheus and report say the same."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.api.errors import ExitCode
from pipeline.api.meter import BOUNDS_S, Histogram
from pipeline.api.numbers import Number
from pipeline.api.runtime import Runtime
from pipeline.cli.main import main
from pipeline.monitor.prometheus import exposition
from pipeline.results.reader import read_results
from pipeline.results.report.time_spent import reuse, time_spent
from pipeline.settings import JobSettings
from tests.pipeline.squares import breaks, files, job, run

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
    assert run(kept(tmp_path, square={"bad": [3]}, max_error_rate=0.1)) is ExitCode.DONE
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
    settings = kept(tmp_path, square=breaks(tmp_path, 25), max_open_chunks=1)
    assert run(settings) is ExitCode.FAILED
    before, _ = read(tmp_path)
    assert before["llama_batch_exit_code", 'job="squares"'] == 1
    (tmp_path / "broken").unlink()
    assert run(settings) is ExitCode.DONE
    after, types = read(tmp_path)
    counters = [key for key in before if types[key[0]] == "counter"]
    assert len(counters) > 10
    assert all(after[key] >= before[key] for key in counters)
    assert after["llama_batch_stage_rows_out_total", 'job="squares",node="write"'] == 45
    assert after["llama_batch_attempt", 'job="squares"'] == 2
    settings.overwrite = True
    assert run(settings) is ExitCode.DONE
    anew, _ = read(tmp_path)
    assert anew["llama_batch_stage_rows_in_total", 'job="squares",node="square"'] == 45


def test_names_that_need_it_are_escaped_and_while_it_runs_what_is_not_known_is_not_said(tmp_path):
    run(job(tmp_path / "out"))
    status = json.loads((tmp_path / "out/status.json").read_text())
    samples, _ = parsed(exposition({**status, "job": 'a "b\\c"\nd'}))
    assert ("llama_batch_rows_finished", r'job="a \"b\\c\"\nd"') in samples
    running = {**status, "state": "running", "exit_code": None, "rows_total": None, "eta_s": 12.5}
    samples, types = parsed(exposition(running))
    assert samples["llama_batch_running", 'job="squares"'] == 1
    assert samples["llama_batch_eta_seconds", 'job="squares"'] == 12.5
    assert {"llama_batch_exit_code", "llama_batch_rows_expected"} & types.keys() == set()


def test_no_number_can_have_the_name_of_a_counter_that_every_run_has(tmp_path):
    run(job(tmp_path / "out"))
    status = json.loads((tmp_path / "out/status.json").read_text())
    caches = {"square": {"cache": {"queries": 2, "hits": 1}}}
    _, types = parsed(exposition({**status, "caches": caches, "totals": {}}))
    names = {name.removeprefix("llama_batch_").removesuffix("_total") for name in types if name.endswith("_total")}
    assert len(names) > 6
    for name in names:
        with pytest.raises(ValueError, match=f"{name} is a number of every run"):
            Runtime.__new__(Runtime).number(name, Number("sheep"), lambda: 0)


def test_a_file_that_cannot_be_written_costs_the_run_nothing(tmp_path, caplog):
    (tmp_path / "run.prom").mkdir()
    assert run(kept(tmp_path)) is ExitCode.DONE
    assert caplog.text.count("prometheus_file is not kept up to date") == 1
    assert run(job(tmp_path / "plain")) is ExitCode.DONE
    assert files(tmp_path / "out") == files(tmp_path / "plain")


JOB = """
defaults: [{override /flow: generate}, {override /model: fake}]
data: {path: "${project:prompts.jsonl}"}
sampling: {max_tokens: 12, n: 2, temperature: 0.8}
runtime: {slots: 4}
chunk_rows: 16
nodes:
  fails: {inputs: generate, op: {_target_: tests.pipeline.target_ops.FailAtRow, row: 40, broken: "${project:broken}"}}
  write: {inputs: fails}
"""
STEP_S = pl.sum_horizontal("form_s", "decode_s", "sample_s")
DECODES = pl.col("decode_tokens") > 0
PREFILLS = pl.col("prefill_tokens") > 0


@pytest.fixture(scope="module")
def attempts(tmp_path_factory) -> tuple[Path, Series, Series]:
    """A run, and what Prometheus was told after its first attempt, which failed, and after the second."""
    here = tmp_path_factory.mktemp("hits")
    (here / "job.yaml").write_text(JOB.replace("${project:", f"{here}/").replace('}"', '"'))
    prompts = [f"{'The same beginning of every prompt. ' * 4}{i}" for i in range(60)]
    (here / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    given = [f"job={here}/job.yaml", f"output_dir={here}/out", f"prometheus_file={here}/a.prom", "progress=none"]
    (here / "broken").touch()
    assert main(given) == ExitCode.FAILED
    first, _ = parsed((here / "a.prom").read_text())
    (here / "broken").unlink()
    assert main(given) == ExitCode.DONE
    second, types = parsed((here / "a.prom").read_text())
    assert {name for name, kind in types.items() if kind == "histogram"} == {
        f"llama_batch_{what}_seconds" for what in ("prefill_call", "decode_call", "token", "first_token")
    }
    return here / "out", first, second


@pytest.fixture(scope="module")
def table(attempts) -> Callable[[str], pl.DataFrame]:
    return lambda name: pl.read_parquet(attempts[0] / f"metrics/{name}.parquet")


def summed(samples: Series, name: str) -> float:
    return sum(value for (metric, _), value in samples.items() if metric == f"llama_batch_{name}")


def uses(samples: Series) -> dict[str, tuple[int, int]]:
    def of(name: str, cache: str) -> int:
        labels = f'job="job",node="generate",cache="{cache}"'
        return int(samples[f"llama_batch_cache_{name}_total", labels])

    return {cache: (of("queries", cache), of("hits", cache)) for cache in ("prefix", "prompt_logits", "store")}


def test_histograms_add_up_to_the_steps_and_the_rows(table):
    steps, rows = table("steps"), table("rows").filter(~pl.col("from_store"), ~pl.col("identical"))
    waits = steps.filter(DECODES).select(n=pl.col("decode_tokens"), s=STEP_S * pl.col("decode_tokens"))
    expected = {
        "prefill_call": (len(steps.filter(PREFILLS)), steps.filter(PREFILLS)["decode_s"].sum()),
        "decode_call": (len(steps.filter(DECODES, ~PREFILLS)), steps.filter(DECODES, ~PREFILLS)["decode_s"].sum()),
        "token": (waits["n"].sum(), waits["s"].sum()),
        "first_token": (len(rows), rows["prefill_s"].sum()),
    }
    assert all(count for count, _ in expected.values())
    found = table("histograms").group_by("what").agg(pl.col("count", "sum_s").sum())
    assert {what: (count, pytest.approx(sum_s)) for what, count, sum_s in found.rows()} == expected


def test_a_duration_on_a_bound_is_below_it():
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0010001, 1e9):
        histogram.add(seconds, times=2)
    assert histogram.read()["buckets"] == {"0.0005": 2, "0.001": 2, "0.002": 2, "inf": 2}
    assert sum(histogram.read()["sums_s"].values()) == pytest.approx(2e9)


def test_prometheus_has_the_histograms_of_all_attempts(attempts, table):
    _, first, second = attempts
    found = table("histograms").group_by("what").agg(pl.col("count", "sum_s").sum())
    for what, count, sum_s in found.rows():
        assert summed(second, f"{what}_seconds_count") == count > summed(first, f"{what}_seconds_count") > 0
        assert summed(second, f"{what}_seconds_sum") == pytest.approx(sum_s, abs=1e-4)
        for samples in (first, second):
            by_node: dict[str, list[tuple[float, float]]] = {}
            for (name, labels), value in samples.items():
                if name == f"llama_batch_{what}_seconds_bucket":
                    others, _, bound = labels.rpartition(",le=")
                    by_node.setdefault(others, []).append((float(bound.strip('"')), value))
            for labels, cumulative in by_node.items():
                assert [bound for bound, _ in cumulative] == list(BOUNDS_S)
                counts = [count for _, count in cumulative]
                assert counts == sorted(counts)
                assert counts[-1] == samples[f"llama_batch_{what}_seconds_count", labels]


def test_hit_rates_are_those_of_the_rows_and_the_same_everywhere(attempts, table, capsys):
    out, first, second = attempts
    rows = table("rows")
    made = rows.filter(~pl.col("from_store"), ~pl.col("identical"))
    expected = {
        "prefix": (made["prompt_tokens"].sum(), made["shared_tokens"].sum()),
        "prompt_logits": (len(made), made["shared_logits"].sum()),
        "store": (len(rows), rows["from_store"].sum()),
    }
    assert all(0 < hits < queries for queries, hits in expected.values())
    told, before = uses(second), uses(first)
    # What was looked up in the store and had not ended when the attempt failed is in the counters alone.
    assert {**told, "store": expected["store"]} == expected
    assert told["store"][0] >= expected["store"][0]
    assert all(told[cache][i] >= before[cache][i] for cache in told for i in (0, 1))

    totals = [json.loads(text) for text in table("run")["totals"]]
    for cache, counts in told.items():
        for key, count in zip(("queries", "hits"), counts, strict=True):
            assert sum(each[f"generate/{cache}_{key}"] for each in totals) == count

    assert main(["status", str(out)]) == ExitCode.DONE
    queries, hits = told["prefix"]
    says = f"hits      prefix cache {100 * hits / queries:.1f} % of {queries:,} prompt tokens, logits of equal prompts "
    assert says in capsys.readouterr().out
    (panel,) = reuse(read_results(out))
    assert {row[0] for row in panel.tables[0].rows} == {"generate"}
    assert {tuple(row[3:5]) for row in panel.tables[0].rows} == {(f"{n:,}", f"{hits:,}") for n, hits in told.values()}


def test_equal_prompts_share_their_logits_and_no_row_says_so_that_computed_its_own(table):
    rows = table("rows")
    shared = rows.filter("shared_logits")
    assert (shared["shared_tokens"] == shared["prompt_tokens"]).all()
    own = rows.filter(~pl.col("shared_logits"), ~pl.col("from_store"))
    assert (own["shared_tokens"] < own["prompt_tokens"]).all()


def test_the_report_has_a_line_for_each_bucket(attempts, table):
    (panel,) = time_spent(read_results(attempts[0]))
    *_, durations = panel.tables
    assert durations.columns == ["up to", "first token", "prefill call", "decode call", "token"]
    assert len(durations.rows) == table("histograms")["up_to_s"].n_unique()
    calls = sum(int(str(row[2] or "0").replace(",", "")) for row in durations.rows)
    assert calls == len(table("steps").filter(PREFILLS))
