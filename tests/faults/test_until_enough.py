"""SIGKILL on the way to a target: a job that is killed twice ends with the bytes of a run that was left alone."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.api.errors import ExitCode
from pipeline.api.meter import RowCounts
from pipeline.run_dir.state import STATE_FILE, RunState
from pipeline.system.failpoints import VARIABLE, Failpoint
from tests.faults.hooks import AT, WATCHED
from tests.faults.results import files, nothing_is_left_over, says_that_all_is_whole

RUN = "tests.faults.hooks:command_line"
SMALL = ("target.accepted_rows=5", "target.chunk_rows=4", "data.limit=3")
"""Five seeds that ask for short texts, so that there are several rounds."""
LARGE = ("target.accepted_rows=60",)
PAIRS = """
defaults:
  - override /flow: generate
  - override /model: tiny
data: {path: "${project:jobs/data/self_instruct_seeds.jsonl}"}
sampling: {n: 3, temperature: 1.0, max_tokens: 20}
nodes:
  score: {inputs: generate, op: {_target_: operators.map.Map, columns: {score: LENGTH(completion)}}}
  slim: {inputs: score, op: {_target_: operators.columns.Select, columns: [prompt, completion, score]}}
  write: {inputs: pairs}
  whole: {inputs: slim, op: {_target_: operators.gather.Gather, columns: [completion, score]}}
  pairs: {inputs: whole, op: {_target_: operators.gather.Pairs, texts: completion, scores: score}}
"""
"""Of three samples the longest is chosen and the shortest rejected; where all are as long there is no pair."""
CASES = [
    pytest.param("self_instruct", SMALL, "decode:25", f"{Failpoint.SHARD_RENAMED}:2", id="small"),
    pytest.param("pairs", SMALL, "decode:5", f"{Failpoint.STATE_COMMITTING}:2", id="pairs"),
    pytest.param("self_instruct", LARGE, "decode:150", f"{Failpoint.STATE_COMMITTING}:3", id="large"),
    pytest.param("self_instruct", LARGE, "prefill:60", f"{Failpoint.GRAPH_ENDED}", id="at the end"),
]


@pytest.fixture
def jobs(tmp_path) -> dict[str, str]:
    (tmp_path / "pairs.yaml").write_text(PAIRS)
    return {"self_instruct": "self_instruct", "pairs": str(tmp_path / "pairs.yaml")}


def arguments(job: str, directory: Path, size: tuple[str, ...], slots: int) -> list[str]:
    return [f"job={job}", f"output_dir={directory}", f"runtime.slots={slots}", "progress=none", *WATCHED, *size]


def accounts(directory: Path) -> dict[str, RowCounts]:
    with closing(RunState(directory / STATE_FILE)) as state:
        return state.accounts()


@pytest.mark.faults  # tests/pipeline/dataflow/test_target.py has the law in make test
@pytest.mark.parametrize(("job", "size", "first", "second"), CASES)
def test_a_run_that_is_killed_twice_gives_the_same_rows_and_the_same_accounts(
    job, size, first, second, jobs, forks, matrix, tmp_path
):
    whole, out = tmp_path / "whole", tmp_path / "out"
    ended = forks.run(RUN, *arguments(jobs[job], whole, size, slots=4))
    assert ended.code == ExitCode.DONE, ended.output
    for where in ({AT: first}, {VARIABLE: second}):
        assert forks.run(RUN, *arguments(jobs[job], out, size, slots=16), **where).code == -signal.SIGKILL
        matrix.saw(kills=1)
    ended = forks.run(RUN, *arguments(jobs[job], out, size, slots=7))
    assert ended.code == ExitCode.DONE, ended.output
    assert files(out) == files(whole)
    assert nothing_is_left_over(out)
    assert says_that_all_is_whole(out)
    of_nodes, rows = accounts(out), sum(pq.read_metadata(p).num_rows for p in (out / "data").glob("*.parquet"))
    matrix.saw(resumes=2, rows=rows)
    assert of_nodes == accounts(whole)
    assert all(c.rows_in + c.expanded == c.rows_out + c.rejected for c in of_nodes.values())
    assert of_nodes["write"].rows_out == rows == int(size[0].partition("=")[2])
    rejected = sum(pq.read_metadata(p).num_rows for p in (out / "rejects").glob("*.parquet"))
    assert of_nodes["read"].rows_in == rows + rejected
