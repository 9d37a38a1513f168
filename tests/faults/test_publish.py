"""SIGKILL while results are published: the resumed run brings the place to the same bytes."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from pipeline.system.failpoints import VARIABLE, Failpoint
from tests.faults import toy
from tests.faults.results import committed_shards_are_whole, files, lost_and_doubled
from tests.faults.test_failpoints import PUBLISHING

RUN = "tests.faults.toy:run_published"
BRIEF = (f"{Failpoint.FILE_UPLOADED}:3", f"{Failpoint.MANIFEST_UPLOADED}:1")
MANY_TIMES = 60


def place(out: Path) -> dict[str, bytes]:
    folder = out.with_name("out.published")
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def lists_nothing_that_is_not_there(out: Path) -> bool:
    """Whether whoever reads the place now finds every file that its manifest lists, whole."""
    there = place(out)
    listed = json.loads(there["manifest.json"])["shards"] if "manifest.json" in there else []
    return all(len(there.get(shard["path"], b"")) == shard["size_bytes"] for shard in listed)


@pytest.fixture
def dies_and_is_resumed(forks, matrix, tmp_path):
    """Has the job die at a point and resumes it; False if it did not come to the point."""
    out = tmp_path / "out"

    def run(at: str) -> bool:
        died = forks.run(RUN, str(out), **{VARIABLE: at})
        if died.code == 0:
            return False
        assert died.code == -signal.SIGKILL, died.output
        assert lists_nothing_that_is_not_there(out)
        ended = forks.run(RUN, str(out))
        assert ended.code == 0, ended.output
        lost, doubled = lost_and_doubled(out, toy.ROWS)
        matrix.saw(kills=1, resumes=1, rows=toy.ROWS, rows_lost=lost, rows_doubled=doubled)
        assert (lost, doubled) == (0, 0)
        assert committed_shards_are_whole(out) == len(files(out))
        own = {name: (out / name).read_bytes() for name in ("manifest.json", "README.md")}
        assert place(out) == files(out) | own
        return True

    return run


@pytest.mark.parametrize("at", [BRIEF[0], pytest.param(BRIEF[1], marks=pytest.mark.faults)])
def test_a_run_that_dies_there_is_published_whole_by_its_resume(at, dies_and_is_resumed):
    assert dies_and_is_resumed(at), "the run does not come to this point"


@pytest.mark.faults
@pytest.mark.parametrize("point", PUBLISHING)
def test_so_is_one_that_dies_there_at_any_time(point, dies_and_is_resumed, tmp_path):
    for nth in range(1, MANY_TIMES):
        if not dies_and_is_resumed(f"{point}:{nth}"):
            assert nth > 1, "the run does not come to this point"
            return
        for folder in tmp_path.iterdir():
            shutil.rmtree(folder)
    pytest.fail(f"the run comes to {point} more than {MANY_TIMES} times")
