"""SIGKILL between any two steps: a run that dies at a failpoint is resumed to the same bytes."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from pipeline.run_dir.metrics_files import scan
from pipeline.system.failpoints import VARIABLE, Failpoint
from pipeline.system.file_cache import PLACE
from tests.faults import toy
from tests.faults.results import (
    committed_shards_are_whole,
    files,
    lost_and_doubled,
    nothing_is_left_over,
    says_that_all_is_whole,
)
from tests.pipeline.damage import flip

pytestmark = pytest.mark.slow("kills whole jobs at each point and resumes them")

RUN = "tests.faults.toy:run"
COMMAND_LINE = (Failpoint.PROCESS_STARTED, Failpoint.CONFIG_COMPOSED)
"""Points that only `python -m pipeline` comes to: tests/faults/test_signals.py."""
PUBLISHING = (
    Failpoint.CARD_WRITTEN,
    Failpoint.DESTINATION_CLAIMED,
    Failpoint.FILE_UPLOADED,
    Failpoint.UPLOAD_NOTED,
    Failpoint.MANIFEST_UPLOADED,
)
"""Points that only a run with a card and a place to publish to comes to: tests/faults/test_publish.py."""
REPLACING = (Failpoint.RESULTS_MOVED,)
"""Points that only a run that replaces results comes to: tests/faults/test_replacing.py."""
POINTS = [p for p in Failpoint if p not in (*COMMAND_LINE, *PUBLISHING, *REPLACING)]
BRIEF = {
    Failpoint.SHARD_RENAMED,
    Failpoint.STATE_COMMITTING,
    Failpoint.METRICS_MERGE_RENAMED,
    Failpoint.MANIFEST_WRITTEN,
}
"""Those that are tried one by one in every test run; all of them in turn are, too."""
UNCOMMITTED = f"{Failpoint.SHARD_RENAMED}:4"
"""Where a run dies that leaves files for the next one to remove: one shard of the second chunk has its name."""
MANY_TIMES = 100


@pytest.fixture(scope="module")
def whole(forks, tmp_path_factory) -> Path:
    """A run that nothing happened to."""
    directory = tmp_path_factory.mktemp("whole") / "out"
    ended = forks.run(RUN, str(directory))
    assert ended.code == 0, ended.output
    assert lost_and_doubled(directory, toy.ROWS) == (0, 0)
    return directory


@pytest.fixture
def dies(forks, matrix, tmp_path):
    """Run, or resume, the job in a directory until it dies at a point; False if it ended before."""

    def run(at: str) -> bool:
        ended = forks.run(RUN, str(tmp_path / "out"), **{VARIABLE: at})
        assert ended.code in (0, -signal.SIGKILL), ended.output
        matrix.saw(kills=ended.code != 0)
        if ended.code:
            committed_shards_are_whole(tmp_path / "out")
            assert says_that_all_is_whole(tmp_path / "out")
        return bool(ended.code)

    return run


@pytest.fixture
def resumes(forks, matrix, whole, tmp_path):
    """Resume the job to its end, and compare."""

    def run() -> None:
        directory = tmp_path / "out"
        before = metrics(directory)
        ended = forks.run(RUN, str(directory))
        assert ended.code == 0, ended.output
        lost, doubled = lost_and_doubled(directory, toy.ROWS)
        matrix.saw(resumes=1, rows=toy.ROWS, rows_lost=lost, rows_doubled=doubled)
        assert (lost, doubled) == (0, 0)
        assert files(directory) == files(whole)
        assert manifest(directory) == manifest(whole)
        assert committed_shards_are_whole(directory) == len(files(whole))
        assert nothing_is_left_over(directory)
        assert says_that_all_is_whole(directory)
        after = metrics(directory)
        assert {name: after[name][: len(rows)] for name, rows in before.items()} == before
        assert no_metric_is_there_twice(after)

    return run


def manifest(directory: Path) -> object:
    return json.loads((directory / "manifest.json").read_text(encoding="utf-8"))


def metrics(directory: Path) -> dict[str, list[tuple[object, ...]]]:
    """The rows of each metrics table, by attempt, as readers find them."""
    names = sorted({path.stem for path in (directory / "metrics").glob("*") if path.suffix != ".tmp"})
    tables = {name: scan(directory / "metrics", name) for name in names}
    return {
        name: table.sort("attempt", maintain_order=True).collect().rows()
        for name, table in tables.items()
        if table is not None
    }


def no_metric_is_there_twice(tables: dict[str, list[tuple[object, ...]]]) -> bool:
    """Whether metrics that a kill left in streams were merged once. Attempt and times make every row another one."""
    return all(len(rows) == len(set(rows)) for rows in tables.values())


@pytest.mark.parametrize("point", [p if p in BRIEF else pytest.param(p, marks=pytest.mark.faults) for p in POINTS])
def test_a_run_that_dies_there_is_resumed_to_the_same_bytes(point, dies, resumes):
    if point is Failpoint.LEFTOVER_REMOVED:
        assert dies(UNCOMMITTED)
    assert dies(point), "the run does not come to this point"
    resumes()


@pytest.mark.parametrize(
    ("at", "cache"),
    [
        (UNCOMMITTED, "another"),
        *(
            pytest.param(at, cache, marks=pytest.mark.faults)
            for at in (Failpoint.JOURNAL_COMMITTED, f"{Failpoint.STATE_COMMITTING}:3")
            for cache in ("another", "of the dead run")
        ),
    ],
)
def test_so_is_one_whose_prompts_have_images(at, cache, forks, matrix, tmp_path):
    """Whether what was computed for images is read from the files that the dead run has left, or computed anew."""
    results = []
    attempts: list[list[dict[str, str]]] = [[{}], [{VARIABLE: at}, {}]]
    for runs in attempts:
        directory = tmp_path / str(len(runs))
        for number, environment in enumerate(runs):
            place = directory.with_name(f"{directory.name}-cache{number * (cache == 'another')}")
            ended = forks.run("tests.faults.toy:run_images", str(directory), **{PLACE: str(place)}, **environment)
            assert ended.code == (-signal.SIGKILL if environment else 0), ended.output
        results.append(files(directory))
    matrix.saw(kills=1, resumes=1, rows=toy.ROWS)
    assert results[0] == results[1]
    assert lost_and_doubled(tmp_path / "2", toy.ROWS) == (0, 0)


@pytest.mark.faults
@pytest.mark.parametrize("point", POINTS)
def test_so_is_one_that_dies_there_later(point, dies, resumes, tmp_path):
    """Every time that it is reached, each in a directory of its own."""
    for nth in range(2, MANY_TIMES):
        if point is Failpoint.LEFTOVER_REMOVED:
            assert dies(UNCOMMITTED)
        if not dies(f"{point}:{nth}"):
            return
        resumes()
        shutil.rmtree(tmp_path / "out")
    pytest.fail(f"the run comes to {point} more than {MANY_TIMES} times")


@pytest.mark.faults
@pytest.mark.parametrize("point", POINTS)
def test_so_is_one_that_dies_there_while_it_is_resumed(point, matrix, dies, resumes):
    matrix.fault = "SIGKILL twice more during a resume"
    assert dies(UNCOMMITTED)
    assert dies(point)
    assert dies(point) or point is Failpoint.ATTEMPT_ENDED  # it is done then
    resumes()


@pytest.mark.faults
def test_so_is_one_that_dies_at_every_point_in_turn(dies, resumes):
    assert dies(UNCOMMITTED)
    spared = {point for point in POINTS if not dies(point)}
    assert spared <= {Failpoint.JOURNAL_COMMITTING, Failpoint.JOURNAL_COMMITTED}  # if all was journaled before
    resumes()


@pytest.mark.parametrize(
    "at",
    [
        UNCOMMITTED,
        pytest.param(Failpoint.RESULTS_MOVED, marks=pytest.mark.faults),  # tests/faults/test_replacing.py has it
        pytest.param(f"{Failpoint.STATE_OPENED}:2", marks=pytest.mark.faults),
        pytest.param(Failpoint.STATE_COMMITTING, marks=pytest.mark.faults),
    ],
)
def test_a_run_that_dies_while_it_replaces_results_is_done_by_the_same_command(at, forks, whole, matrix, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    died = forks.run(RUN, str(out), "overwrite", **{VARIABLE: at})
    assert died.code == -signal.SIGKILL, died.output
    ended = forks.run(RUN, str(out), "overwrite")
    assert ended.code == 0, ended.output
    matrix.saw(kills=1, resumes=1, rows=toy.ROWS)
    assert files(out) == files(whole)


@pytest.mark.parametrize(
    ("point", "times"),
    [
        pytest.param(Failpoint.STATE_OPENED, 1, marks=pytest.mark.faults),
        (Failpoint.ATTEMPT_STARTED, 1),
    ]
    + [pytest.param(p, MANY_TIMES, marks=pytest.mark.faults) for p in POINTS],
)
def test_a_repair_of_a_lost_state_that_dies_there_goes_on(point, times, forks, whole, matrix, tmp_path):
    """Nothing is called whole before all files are as they were."""
    out = tmp_path / "out"
    for nth in range(1, times + 1):
        shutil.copytree(whole, out)
        flip(out / "rejects/part-00000.parquet")
        for name in ("state.sqlite", "data/part-00002.parquet"):
            (out / name).unlink()
        died = forks.run("tests.faults.toy:repair", str(out), **{VARIABLE: f"{point}:{nth}"})
        assert died.code in (0, -signal.SIGKILL), died.output
        if (out / "state.sqlite").exists() and says_that_all_is_whole(out):
            assert (files(out), manifest(out)) == (files(whole), manifest(whole))
        ended = forks.run("tests.faults.toy:repair", str(out))
        assert ended.code == 0, ended.output
        assert (files(out), manifest(out)) == (files(whole), manifest(whole))
        assert says_that_all_is_whole(out)
        matrix.saw(kills=died.code != 0, repairs=1, rows=toy.ROWS)
        shutil.rmtree(out)
        if not died.code:
            return


def test_a_finished_run_says_so_and_is_not_run_again(forks, whole, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in (whole / "data").rglob("*")}
    ended = forks.run(RUN, str(whole), **{VARIABLE: Failpoint.ATTEMPT_STARTED})
    assert (ended.code, "finished already" in ended.output) == (0, True)
    assert {path: path.stat().st_mtime_ns for path in (whole / "data").rglob("*")} == before
