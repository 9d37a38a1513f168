"""SIGKILL in a recipe: killed twice, it ends with the bytes of a run that was left alone."""

from __future__ import annotations

import signal

import pyarrow.parquet as pq
import pytest

from pipeline.api.errors import ExitCode
from pipeline.system.failpoints import VARIABLE, Failpoint
from tests.faults.hooks import AT, WATCHED
from tests.faults.results import files, nothing_is_left_over

RUN = "tests.faults.hooks:command_line"
TARGET = ("target.accepted_rows=6", "target.chunk_rows=4")
RECIPES = {
    "magpie": (*TARGET, "data.limit=5"),
    "rephrase": ("chunk_rows=4", "data.limit=12"),
    "ultrafeedback": (*TARGET, "data.limit=8"),
    "evol_instruct": (*TARGET, "data.limit=8"),
    "judge": (*TARGET, "data.limit=8"),
    "self_consistency": ("chunk_rows=8", "data.limit=48", "steps.completion.n=6"),
    "dialogues": ("chunk_rows=8", "data.limit=24"),
}


@pytest.mark.faults
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_that_is_killed_twice_gives_the_same_files(recipe, forks, matrix, tmp_path):
    def run(name: str, slots: int, **where: str) -> int:
        job = (f"job={recipe}", f"output_dir={tmp_path / name}", f"runtime.slots={slots}", "progress=none")
        ended = forks.run(RUN, *job, *WATCHED, *RECIPES[recipe], **where)
        assert ended.code in (ExitCode.DONE, -signal.SIGKILL), ended.output
        return int(ended.code)

    assert run("whole", 4) == ExitCode.DONE
    assert run("out", 16, **{AT: "decode:60"}) == -signal.SIGKILL
    assert run("out", 2, **{VARIABLE: f"{Failpoint.SHARD_RENAMED}:2"}) == -signal.SIGKILL
    matrix.saw(kills=2)
    assert run("out", 7) == ExitCode.DONE
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert nothing_is_left_over(tmp_path / "out")
    rows = sum(pq.read_metadata(path).num_rows for path in (tmp_path / "out/data").glob("*.parquet"))
    assert rows >= 6
    matrix.saw(resumes=2, rows=rows)
