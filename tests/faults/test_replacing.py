"""SIGKILL while results are replaced: they are all of the old run, or the new one goes on."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.api.errors import ConfigError
from pipeline.cli import status, verify
from pipeline.run_dir.names import GATHERED, SET_ASIDE
from pipeline.system.failpoints import VARIABLE, Failpoint
from tests.faults.replaced import DIES_AT_OPEN, DIES_IN_ROWS
from tests.faults.results import files, nothing_is_left_over, query

pytestmark = pytest.mark.slow("kills runs that replace others, and what puts back the results")

MANY_TIMES = 100
HALF_RUN = {VARIABLE: f"{Failpoint.SHARD_RENAMED}:5"}
OPEN = {DIES_AT_OPEN: "1"}
MOVING = {VARIABLE: f"{Failpoint.RESULTS_MOVED}:4"}
POINTS = [p for p in Failpoint if p not in (Failpoint.RESULTS_MOVED, Failpoint.STATE_OPENED)]
KINDS = {
    "finished": ("job", {}),
    "unfinished": ("job", HALF_RUN),
    "rows": ("rows", {}),
    "half rows": ("rows", HALF_RUN),
}
"""By name: the function that runs it, and what ends the old run early."""


class Runs:
    """A directory with results of an old run, which a new one is to replace; both as they are if nothing happens."""

    def __init__(self, forks: Any, matrix: Any, folder: Path, kind: str) -> None:
        self._forks, self._matrix, self._folder = forks, matrix, folder
        self._function, early = KINDS[kind]
        self.out, self.old = folder / "out", folder / "old"
        self._run(self.out, "old", **early)
        shutil.copytree(self.out, self.old)
        self.ended = {}
        for which in ("old", "new"):
            whole = folder / f"whole-{which}"
            shutil.copytree(self.old, whole)
            assert self.command(whole, which) == 0
            self.ended[which] = result(whole)

    def _run(self, directory: Path, *arguments: str, **environment: str) -> int:
        ended = self._forks.run(f"tests.faults.replaced:{self._function}", str(directory), *arguments, **environment)
        assert ended.code in (0, -signal.SIGKILL), ended.output
        self._matrix.saw(kills=ended.code != 0)
        return ended.code

    def command(self, directory: Path, which: str = "new", **environment: str) -> int:
        """Give the command of the old run, or of the one that replaces it; returns its exit code."""
        return self._run(directory, which, *["overwrite"] * (which == "new"), **environment)

    def dies(self, **environment: str) -> bool:
        """Have the new run be killed; False if it is not."""
        return self.command(self.out, **environment) != 0

    def verify_dies(self, **environment: str) -> bool:
        ended = self._forks.run("tests.faults.toy:repair", str(self.out), **environment)
        assert ended.code in (0, -signal.SIGKILL), ended.output
        return ended.code != 0

    def check(self) -> None:
        """Check the law, and leave the directory as it was before the new run."""
        readers_change_nothing_and_say_what_is_half(self.out)
        for words in ([], ["repair=true"]):
            copy = self._folder / "copy"
            shutil.copytree(self.out, copy)
            assert verify.main([str(copy), *words]) == 0
            assert not moved(copy)
            state = facts(copy)
            if state == facts(self.old):
                assert snapshot(copy) == snapshot(self.old)
                if not words:
                    assert self.command(copy, "old") == 0
                    assert result(copy) == self.ended["old"]
            else:
                assert not half(self.out), "it may have been killed only after it has begun"
                assert files(copy).items() <= self.ended["new"][0].items() or not state["shards"]
            shutil.rmtree(copy)
        assert self.command(self.out) == 0
        assert result(self.out) == self.ended["new"]
        assert nothing_is_left_over(self.out)
        assert not moved(self.out)
        assert verify.main([str(self.out)]) == 0
        self.restore()
        self._matrix.saw(resumes=1)

    def restore(self) -> None:
        """Leave the directory as it was before the new run."""
        shutil.rmtree(self.out)
        shutil.copytree(self.old, self.out)


def result(directory: Path) -> tuple[dict[str, bytes], ...]:
    """What a run is for: its shards, its manifest and the rows that it was given."""
    names = [name for name in ("manifest.json", "input.parquet") if (directory / name).exists()]
    return files(directory), {name: (directory / name).read_bytes() for name in names}


def snapshot(directory: Path) -> dict[str, bytes]:
    """Every file but the lock, the store, and the state (see `facts`)."""
    names = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.is_file()}
    kept = (".lock", "completions.sqlite", "state.sqlite")
    return {name: path.read_bytes() for name, path in names.items() if not name.startswith(kept)}


def facts(directory: Path) -> dict[str, Any]:
    """What state.sqlite has."""
    tables = {"shards": "*", "attempts": "*", "meta": "*"}
    return {name: query(directory / "state.sqlite", f"SELECT {what} FROM {name}") for name, what in tables.items()}


def moved(directory: Path) -> list[Path]:
    return list(directory.glob(".replaced*"))


def half(directory: Path) -> bool:
    return any((directory / name).exists() for name in (GATHERED, SET_ASIDE))


def readers_change_nothing_and_say_what_is_half(out: Path) -> None:
    there = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    if half(out):
        assert status.main([str(out)]) == 4
        with pytest.raises(ConfigError, match=r"verify .* puts them back"):
            pipeline.load(out)
    else:
        status.main([str(out)])
        pipeline.load(out)
    assert there == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}


@pytest.fixture(params=["finished", *(pytest.param(kind, marks=pytest.mark.faults) for kind in list(KINDS)[1:])])
def runs(request, forks, matrix, tmp_path) -> Runs:
    return Runs(forks, matrix, tmp_path, request.param)


def each(dies: Callable[..., bool], point: Failpoint, check: Callable[[], None]) -> int:
    """Have something killed each time that it comes to `point`, and check what is left. Returns how often it came."""
    for nth in range(1, MANY_TIMES):
        if not dies(**{VARIABLE: f"{point}:{nth}"}):
            return nth - 1
        check()
    pytest.fail(f"it comes to {point} more than {MANY_TIMES} times")


def test_results_are_all_of_the_old_run_or_the_new_one_goes_on(runs):
    assert runs.dies(**OPEN)
    assert half(runs.out)
    runs.check()
    assert runs.dies(**MOVING)
    assert half(runs.out)
    runs.check()
    if runs.dies(**{DIES_IN_ROWS: "1"}):
        runs.check()


@pytest.mark.faults
def test_so_are_they_after_a_kill_at_any_move(runs):
    assert each(runs.dies, Failpoint.RESULTS_MOVED, runs.check) > 5


@pytest.mark.faults
def test_so_are_they_after_a_kill_elsewhere(runs):
    died = []
    for point in POINTS:
        if runs.dies(**{VARIABLE: point}):
            died.append(point)
            runs.check()
        else:
            runs.restore()
    assert {Failpoint.ATTEMPT_STARTED, Failpoint.STATE_COMMITTED, Failpoint.ATTEMPT_ENDED} <= set(died)


@pytest.mark.faults
@pytest.mark.parametrize("first", [OPEN, MOVING], ids=["open", "moving"])
@pytest.mark.parametrize("second", ["dies", "verify_dies"])
def test_so_are_they_if_what_puts_them_back_dies_too(first, second, runs):
    def dies(**environment: str) -> bool:
        runs.restore()
        assert runs.dies(**first)
        return bool(getattr(runs, second)(**environment))

    assert each(dies, Failpoint.RESULTS_MOVED, runs.check) > 2
    each(dies, Failpoint.LEFTOVER_REMOVED, runs.check)
