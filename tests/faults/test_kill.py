"""SIGKILL at random moments: a job on the model that ships is killed again and again, and resumed until it is done."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from operators.generation.journal import FLUSH_ROWS
from pipeline import PROJECT
from tests.faults.hooks import TOKENS, WATCHED, new_counter
from tests.faults.matrix import Case
from tests.faults.results import (
    committed_shards_are_whole,
    files,
    lost_and_doubled,
    nothing_is_left_over,
    query,
    says_that_all_is_whole,
)

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow("kills whole jobs and resumes them"),
]  # test_failpoints.py has a kill between each two steps in make test

SLOTS, MAX_TOKENS = 16, 16
START, RUN, LATE, END = "start", "run", "late", "end"
"""Before it decodes, while it does, long after, when all is written."""
ENDS_WITHIN_S = 0.5
"""About how long a run takes from its last chunk to its exit."""
LIMIT_S = 300
Wait = Callable[["subprocess.Popen[bytes]"], None]


@dataclass(frozen=True)
class Job:
    """A job that is killed.

    Args:
        rows, chunk_rows: its size.
        kills: in which phase each kill comes, in order.
    """

    rows: int
    chunk_rows: int
    kills: tuple[str, ...]

    @property
    def last_shard(self) -> str:
        return f"data/part-{-(-self.rows // self.chunk_rows) - 1:05d}.parquet"


SMALL = Job(160, 40, (RUN, RUN))
LARGE = Job(2000, 250, (START, LATE, START, RUN, RUN, START, RUN, RUN, END, END))
CASES = [
    pytest.param(SMALL, 0, id="small"),
    *(pytest.param(LARGE, seed, id=f"large-{seed}", marks=pytest.mark.faults) for seed in range(10)),
]


@dataclass(frozen=True)
class Whole:
    """A run that nothing happened to. `started_s`: until its nodes ran; `ran_s`: from there to its end."""

    directory: Path
    command: tuple[str, ...]
    started_s: float
    ran_s: float
    tokens_per_s: float


def prompts(path: Path, rows: int) -> Path:
    """Prompts of which no two are the same, each with its own max_tokens; one row in 250 cannot be read."""
    words = ("lamp", "river", "stone", "cloud", "violin", "garden", "winter")
    lines = [
        json.dumps({"prompt": f"Row {i}: {' '.join(words[: 1 + i % 7])}?", "max_tokens": 4 + i * 7 % (MAX_TOKENS - 3)})
        for i in range(rows)
    ]
    lines[101::250] = ["{not a row"] * len(lines[101::250])
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def whole_of(tmp_path_factory) -> Callable[[Job], Whole]:
    """A job, run once for all tests."""
    return functools.cache(lambda job: run_whole(job, tmp_path_factory.mktemp("whole")))


def run_whole(job: Job, folder: Path) -> Whole:
    command = (
        *(sys.executable, "-m", "pipeline", "job=generate", "model=tiny", *WATCHED, "progress=none", "report=false"),
        *(f"data.path={prompts(folder / 'prompts.jsonl', job.rows)}", f"chunk_rows={job.chunk_rows}"),
        *(f"runtime.slots={SLOTS}", "sampling.ignore_eos=true", "sampling.per_row=[max_tokens]"),
    )
    began = time.perf_counter()
    code, output = attempt(command, folder / "out", folder / "tokens")
    took = time.perf_counter() - began
    assert code == 0, output
    (ran,) = pq.read_table(folder / "out/metrics/run.parquet").to_pylist()
    assert lost_and_doubled(folder / "out", job.rows) == (0, 0)
    return Whole(folder / "out", command, took - ran["wall_s"], ran["wall_s"], ran["tokens_per_s"])


def attempt(command: tuple[str, ...], out: Path, tokens: Path, kill_after: Wait | None = None) -> tuple[int, str]:
    """Run the job, or resume it; `kill_after(process)` waits for the moment at which it is killed."""
    if not tokens.exists():
        new_counter(tokens)
    environment = os.environ | {TOKENS: str(tokens)}
    with (
        (out.parent / "output.txt").open("w+") as output,
        subprocess.Popen(
            [*command, f"output_dir={out}"], cwd=PROJECT, env=environment, stdout=output, stderr=output
        ) as process,
    ):
        if kill_after is not None:
            kill_after(process)
            process.kill()
        code = process.wait(LIMIT_S)
        output.seek(0)
        return code, output.read()


def moment(phase: str, job: Job, whole: Whole, out: Path, draw: random.Random) -> Wait:
    """Waits for a random moment of the phase, or for the end of the process."""

    def wait(process: subprocess.Popen[bytes]) -> None:
        if phase == END:
            while not (out / job.last_shard).exists() and process.poll() is None:
                time.sleep(0.002)
        start, run = whole.started_s, whole.ran_s
        some = 0.4 * run / (1 + job.kills.count(RUN))  # so that a job lives to see all its kills
        moments = {
            START: (0, start),
            RUN: (start, start + some),
            LATE: (start + 0.3 * run, start + 0.6 * run),
            END: (0, ENDS_WITHIN_S),
        }
        try:
            process.wait(draw.uniform(*moments[phase]))
        except subprocess.TimeoutExpired:
            return

    return wait


def journaled_tokens(out: Path) -> int:
    return sum(n for (n,) in query(out / "completions.sqlite", "SELECT LENGTH(ids) / 4 FROM completions"))


def tokens_in(directory: Path) -> int:
    shards = sorted((directory / "data").glob("*.parquet"))
    return sum(n for s in shards for n in pq.read_table(s)["completion_token_count"].to_pylist())


def bound_of_a_kill(whole: Whole) -> float:
    """Tokens that a kill may cost: those in the slots, and the finished rows that wait to be journaled."""
    return SLOTS * MAX_TOKENS + max(FLUSH_ROWS * MAX_TOKENS, whole.tokens_per_s)


def killed_and_resumed(job: Job, whole: Whole, folder: Path, draw: random.Random, matrix: Case) -> int:
    """Kill a job at each of its moments, resume it to its end, compare. Returns how many kills found it alive."""
    out, tokens = folder / "out", folder / "tokens"
    counter = new_counter(tokens)
    kills = drawn = 0
    for phase in job.kills:
        journaled = journaled_tokens(out)
        code, output = attempt(whole.command, out, tokens, kill_after=moment(phase, job, whole, out, draw))
        assert code in (0, -9), output
        if code == 0:  # it was done before: the moment came too late
            break
        kills += 1
        matrix.saw(**{f"kills_at_{phase}": 1})
        committed_shards_are_whole(out)
        assert says_that_all_is_whole(out)
        at_risk = int(counter[0]) - drawn - (journaled_tokens(out) - journaled)
        drawn = int(counter[0])
        matrix.had_at_most(tokens_not_journaled_at_a_kill=at_risk, bound=bound_of_a_kill(whole))
        assert 0 <= at_risk <= bound_of_a_kill(whole), phase
    code, output = attempt(whole.command, out, tokens)
    assert code == 0, output
    lost, doubled = lost_and_doubled(out, job.rows)
    matrix.saw(resumes=kills, rows=job.rows, rows_lost=lost, rows_doubled=doubled)
    decoded_twice = int(counter[0]) - tokens_in(out)
    matrix.saw(tokens=tokens_in(out), tokens_decoded_twice=decoded_twice)
    assert (lost, doubled) == (0, 0)
    assert files(out) == files(whole.directory)
    assert nothing_is_left_over(out)
    assert 0 <= decoded_twice <= kills * bound_of_a_kill(whole)
    return kills


def folders(root: Path) -> Iterator[Path]:
    """New ones, as many as are asked for."""
    number = 0
    while True:
        number += 1
        (root / str(number)).mkdir()
        yield root / str(number)


def enough_kills(job: Job, whole: Whole, root: Path, seed: int, matrix: Case) -> int:
    """Jobs one after the other, until as many kills as one job is to see have found their process alive. Each is
    compared with `whole`. Returns how many kills that were."""
    draw, kills = random.Random(seed), 0
    fresh = folders(root)
    while kills < len(job.kills):
        kills += killed_and_resumed(job, whole, next(fresh), draw, matrix)
    return kills


@pytest.mark.parametrize(("job", "seed"), CASES)
def test_a_killed_job_is_resumed_to_the_same_bytes(job, seed, whole_of, tmp_path, matrix):
    assert enough_kills(job, whole_of(job), tmp_path, seed, matrix) >= len(job.kills)
    assert lost_and_doubled(tmp_path / "1/out", job.rows) == (0, 0)
    assert files(tmp_path / "1/out") == files(whole_of(job).directory)
