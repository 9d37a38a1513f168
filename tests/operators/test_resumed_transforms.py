"""Dedup, Limit and Gather in a run that breaks off: the same files as one that did not, and whole after a repair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.api.errors import ExitCode
from pipeline.api.runtime import Resources
from pipeline.cli.verify import main as verify
from pipeline.runs.run import run_job
from pipeline.settings import JobSettings, NodeSettings
from tests.sets import often_cases

OPS = "tests.pipeline.job_ops"
ROWS = 200


def job(directory: Path, fail_at: int, broken: Path, max_open_chunks: int) -> JobSettings:
    nodes = {
        "numbers": NodeSettings({"_target_": f"{OPS}.Numbers", "rows": ROWS}),
        "key": NodeSettings({"_target_": "operators.map.Map", "columns": {"key": "x % 70"}}, "numbers"),
        "say": NodeSettings({"_target_": "operators.say.Say", "role": "user", "content": "{{ key }}?"}, "key"),
        "bad": NodeSettings({"_target_": "operators.filter.Filter", "where": "x % 9 <> 4"}, "say"),
        "distinct": NodeSettings({"_target_": "operators.dedup.Dedup", "columns": ["key"]}, "bad"),
        "limit": NodeSettings({"_target_": "operators.limit.Limit", "rows": 50}, "distinct"),
        "square": NodeSettings({"_target_": f"{OPS}.Square", "fail_at": fail_at, "broken": str(broken)}, "limit"),
        "write": NodeSettings({"_target_": f"{OPS}.Parquet"}, "square"),
    }
    return JobSettings(
        name="limited", nodes=nodes, output_dir=str(directory), progress="none", max_open_chunks=max_open_chunks
    )


def gathered(directory: Path, fail_at: int, broken: Path, max_open_chunks: int) -> JobSettings:
    """Four samples of each row, of which some are lost, some seen before, and the others put together again."""
    settings = job(directory, fail_at, broken, max_open_chunks)
    apart = {"function": f"{OPS}.four_samples", "columns": {"sample": "int64", "tag": "int64"}, "many": True}
    more = {
        "apart": NodeSettings({"_target_": "operators.call.Call", **apart}, "say"),
        "part": NodeSettings({"_target_": "operators.map.Map", "columns": {"part": "sample % 10"}}, "apart"),
        "whole": NodeSettings({"_target_": "operators.gather.Gather", "columns": ["sample", "part"]}, "distinct"),
    }
    settings.nodes |= more
    settings.nodes["bad"] = NodeSettings({"_target_": "operators.filter.Filter", "where": "sample % 7 <> 4"}, "part")
    settings.nodes["distinct"].op["columns"] = ["key", "part"]
    settings.nodes["limit"].inputs = ["whole"]
    return settings


def run(settings: JobSettings) -> ExitCode:
    return run_job(settings, Resources())


def files(directory: Path) -> dict[str, bytes]:
    """Everything in data/ and rejects/, whatever its name."""
    found = [p for folder in ("data", "rejects") for p in (directory / folder).rglob("*") if p.is_file()]
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in found}


@pytest.mark.parametrize("job", [job, gathered])
@pytest.mark.parametrize(("fail_at", "max_open_chunks"), often_cases([(12, 1), (30, 2), (44, 8)], 30))
def test_a_run_that_broke_off_ends_with_the_same_files(tmp_path, fail_at, max_open_chunks, job):
    broken, out, whole = tmp_path / "broken", tmp_path / "out", tmp_path / "whole"
    assert run(job(whole, fail_at, broken, 4)) is ExitCode.DONE
    broken.touch()
    assert run(job(out, fail_at, broken, max_open_chunks)) is ExitCode.FAILED
    broken.unlink()
    assert run(job(out, fail_at, broken, max_open_chunks)) is ExitCode.DONE
    assert files(out) == files(whole)
    assert not [name for name in files(out) if not name.endswith(".parquet")]
    first, second = (json.loads((d / "manifest.json").read_text()) for d in (out, whole))
    assert first == second
    assert first["counts"]["data_rows"] == 50
    assert first["counts"]["source_rows"] < ROWS


def test_a_damaged_chunk_is_made_again_from_the_chunks_before_it(tmp_path):
    """Alone it would be another one: all that is in it had been seen."""
    out = tmp_path / "out"
    settings = job(out, -1, tmp_path / "broken", 4)
    settings.nodes["key"].op["columns"] = {"key": "x % 25"}
    settings.nodes["square"].inputs = ["distinct"]
    del settings.nodes["limit"]
    assert run(settings) is ExitCode.DONE
    before = files(out)
    (out / "data/part-00003.parquet").write_bytes(b"gone")
    assert verify([str(out)]) == ExitCode.FAILED
    assert verify([str(out), "repair=true"]) == ExitCode.DONE
    assert files(out) == before
