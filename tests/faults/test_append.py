"""SIGKILL while rows are appended: the night goes on, and nothing of the nights before changes."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import polars as pl
import pytest

from pipeline.python.result import load
from pipeline.system.atomic_files import sha256_of
from pipeline.system.failpoints import VARIABLE, Failpoint
from tests.faults import toy
from tests.faults.results import committed_shards_are_whole, files, nothing_is_left_over, says_that_all_is_whole
from tests.faults.test_failpoints import BRIEF, POINTS, UNCOMMITTED

pytestmark = pytest.mark.slow("kills whole jobs at each point and resumes them")

RUN = "tests.faults.toy:run_appending"
LAST_NIGHT = toy.ROWS // 2


def put(here: Path, name: str, first: int, last: int) -> None:
    (here / "in").mkdir(exist_ok=True)
    (here / "in" / name).write_text("".join(f'{{"x": {x}}}\n' for x in range(first, last)))


@pytest.fixture(scope="module")
def nights(forks, tmp_path_factory) -> tuple[Path, Path]:
    """The folders after the first night, and after the second, to which nothing happened."""
    first, second = (tmp_path_factory.mktemp("nights") / name for name in ("first", "second"))
    first.mkdir()
    put(first, "b.jsonl", 0, LAST_NIGHT)
    assert forks.run(RUN, str(first / "out")).code == 0
    put(first, "a.jsonl", LAST_NIGHT, toy.ROWS)
    shutil.copytree(first, second)
    assert forks.run(RUN, str(second / "out")).code == 0
    return first, second


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("point", [p if p in BRIEF else pytest.param(p, marks=pytest.mark.faults) for p in POINTS])
def test_a_night_that_dies_there_is_resumed_to_the_same_bytes(point, nth, forks, matrix, nights, tmp_path):
    first, second = nights
    here = tmp_path / "here"
    shutil.copytree(first, here)
    before = files(first / "out")
    for at in [UNCOMMITTED] * (point is Failpoint.LEFTOVER_REMOVED) + [f"{point}:{nth}"]:
        ended = forks.run(RUN, str(here / "out"), **{VARIABLE: at})
        assert ended.code in (0, -signal.SIGKILL), ended.output
        matrix.saw(kills=ended.code != 0)
        committed_shards_are_whole(here / "out")
        assert before.items() <= files(here / "out").items()
    ended = forks.run(RUN, str(here / "out"))
    assert ended.code == 0, ended.output
    matrix.saw(resumes=1, rows=toy.ROWS)
    assert files(here / "out") == files(second / "out")
    assert nothing_is_left_over(here / "out")
    assert says_that_all_is_whole(here / "out")


PUBLISHED = "tests.faults.toy:run_appending_published"


@pytest.mark.faults
@pytest.mark.parametrize("nth", [1, 2, 3, 5])
@pytest.mark.parametrize("point", [Failpoint.FILE_UPLOADED, Failpoint.UPLOAD_NOTED, Failpoint.MANIFEST_UPLOADED])
def test_what_is_published_of_the_newest_rows_is_whole_after_a_kill(point, nth, forks, matrix, tmp_path):
    def run(**environment: str) -> int:
        (tmp_path / "out.published").mkdir(exist_ok=True)
        return int(forks.run(PUBLISHED, str(tmp_path / "out"), **environment).code)

    put(tmp_path, "a.jsonl", 0, 90)
    first = (tmp_path / "in/a.jsonl").read_text().replace("}", ', "v": 0}')
    (tmp_path / "in/a.jsonl").write_text(first)
    assert run() == 0
    rows = "".join(f'{{"x": {x}, "v": 1}}\n' for x in range(0, 90, 7))
    (tmp_path / "in/a.jsonl").write_text(first + rows)
    matrix.saw(kills=run(**{VARIABLE: f"{point}:{nth}"}) == -signal.SIGKILL)
    assert run() == 0
    there, listed = tmp_path / "out.published", json.loads((tmp_path / "out.published/manifest.json").read_text())
    assert {shard["path"]: shard["sha256"] for shard in listed["shards"]} == {
        path.relative_to(there).as_posix(): sha256_of(path) for path in there.rglob("part-*")
    }
    for folder in ("data", "data/squares"):
        newest = load(tmp_path / "out").rows(folder).collect()
        assert sorted(pl.read_parquet(there / folder / "*.parquet")["row"]) == sorted(newest["row"])
        assert bool(newest["v"].sum()) == (folder == "data/squares")  # of the others Dedup keeps the first
