"""The benchmark as a job: measured on the small model, skipped, failed, resumed."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main

pytestmark = pytest.mark.slow("measures a small benchmark")

SHORT = ("model=tiny", "bench.repeats=1", "bench.slots=[2]", "bench.max_rows=3", "sampling.max_tokens=6")


@pytest.fixture
def bench(tmp_path):
    def run(*arguments: str) -> ExitCode:
        where = (f"output_dir={tmp_path / 'out'}", f"bench.cache={tmp_path / 'cache'}", f"bench.peers={tmp_path}")
        return ExitCode(main(["job=bench", *SHORT, *where, "progress=none", *arguments]))

    return run


def rows(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "out/data/*.parquet").sort("row")


@pytest.mark.laws
def test_the_ladder_does_the_same_work_on_every_rung(bench, tmp_path):
    assert bench("bench.scenarios=[ladder]") == ExitCode.DONE
    found = rows(tmp_path)
    assert found["contender"].to_list() == ["engine", "sampling", "dataflow", "job"]
    assert found["new_tokens"].n_unique() == found["prompt_tokens"].n_unique() == found["steps"].n_unique() == 1
    for name in ("work_s", "wall_s", "cpu_s", "peak_rss_mb", "tokens_per_s", "decode_s"):
        assert found[name].is_not_null().all(), name
        assert (found[name] > 0).all(), name
    assert (found["work_s"] < found["wall_s"]).all()
    assert (found["tokens_per_s"] - found["new_tokens"] / found["work_s"]).abs().max() < 1e-6  # type: ignore[operator]
    report = (tmp_path / "out/report.md").read_text()
    assert re.search(r"^\| dataflow \|", report, re.M)


def test_what_cannot_be_measured_says_why(bench, tmp_path):
    assert bench("bench.scenarios=[peers]", "bench.contenders=[llama-server,llama-bench]") == ExitCode.DONE
    found = rows(tmp_path)
    assert all("make peers" in reason for reason in found["skipped_reason"])
    assert found["tokens_per_s"].is_null().all()


def test_a_contender_that_fails_is_a_reject_with_its_last_words(bench, tmp_path):
    program = tmp_path / "llama-batched-bench"
    program.write_text("#!/bin/sh\necho no such model >&2\nexit 7\n")
    program.chmod(0o755)
    code = bench("bench.scenarios=[peers]", "bench.contenders=[llama-batched-bench]", "bench.slots=[2,3]")
    assert code == ExitCode.REJECTS
    reasons = pl.read_parquet(tmp_path / "out/rejects/*.parquet")["reason"]
    assert len(reasons) == 2
    assert all("ended with 7: no such model" in reason for reason in reasons)
    assert "no such model" in (tmp_path / "out/report.md").read_text()


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("data.path=nothing.jsonl", "nothing.jsonl"),
        ("model.path=nothing.gguf", "nothing.gguf"),
        ("bench.scenarios=[speed]", "few_shot"),
        ("bench.toggle=[speed]", "compaction"),
        ("bench.scenarios=[images]", "model.mmproj="),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(bench, tmp_path, capsys, argument, says):
    assert bench(argument) == ExitCode.CONFIG
    assert says in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


@pytest.mark.laws
def test_a_model_is_made_once_where_none_is_given(bench, tmp_path):
    made = ("model=gguf", "bench.shape=tiny", "bench.scenarios=[ladder]", "bench.contenders=[engine]")
    assert bench(*made) == ExitCode.DONE
    (model,) = (tmp_path / "cache").glob("*.gguf")
    written = model.stat().st_mtime_ns
    assert bench(*made, "overwrite=true") == ExitCode.DONE
    assert model.stat().st_mtime_ns == written
