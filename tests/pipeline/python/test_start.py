"""Runs that a program follows, is told of and cancels, while they work in another thread."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import PROJECT, Job, Progress, load, run, start
from pipeline.api.errors import ConfigError, Interrupted, PipelineError
from pipeline.monitor.recorder import read_status
from pipeline.monitor.snapshot import Snapshot
from pipeline.runs.control import Control
from tests.pipeline.python.test_run import QUIET, parts
from tests.sets import often

pytestmark = pytest.mark.slow("runs whole jobs from Python")

CHUNK, ROWS = 4, 24
OPEN = threading.Event()
patience = {"s": 20.0}
"""Until it is open, or for so long, each row behind the fourth chunk waits: a run stands there when it is stopped."""


def seen(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["row"] >= 4 * CHUNK:
        OPEN.wait(patience["s"])
    return {"seen": row["row"] * 10 if row["row"] >= CHUNK else None}


def slow_job(**groups: Any) -> dict[str, Any]:
    job = Job("slow", {"chunk_rows": CHUNK, "max_open_chunks": 1}, model="fake", sampling={"max_tokens": 2}, **groups)
    job.step("reply", prompt="{{ n }}").node("seen", "operators.call.Call", "reply", function=seen, columns=COLUMNS)
    job.node("write", "operators.sinks.write_rows.WriteRows", "seen", output="${output}")
    return {"job": job, "rows": [{"n": n} for n in range(ROWS)], **QUIET}


COLUMNS = {"seen": "int64"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    OPEN.set()
    return run(**slow_job(), directory=tmp_path_factory.mktemp("whole") / "out")


@pytest.fixture(autouse=True)
def closed():
    OPEN.clear()
    yield
    OPEN.set()


def test_chunks_come_while_the_run_works_and_are_its_rows(tmp_path, whole):
    started = start(**slow_job(), directory=tmp_path / "out")
    batches = started.batches()
    first = [next(batches), next(batches)]
    assert [batch.num_rows for batch in first] == [CHUNK, CHUNK]
    assert not started.done()
    elsewhere = load(tmp_path / "out").batches(follow=True)
    again = [next(elsewhere), next(elsewhere)]
    OPEN.set()
    for each in ([*first, *batches], [*again, *elsewhere], list(whole.batches()), list(whole.batches(follow=True))):
        assert pa.Table.from_batches(each).equals(whole.arrow())
    assert parts(started.result().directory) == parts(whole.directory)


def test_what_is_cancelled_goes_on_to_equal_bytes(tmp_path, whole):
    started = start(**slow_job(), directory=tmp_path / "out")
    given: list[pa.RecordBatch] = []

    def cancel_at_the_first() -> None:
        for batch in started.batches():
            given.append(batch)
            started.cancel()
            while not (read_status(tmp_path / "out") or {})["ending"]:
                time.sleep(0.05)
            OPEN.set()

    with pytest.raises(Interrupted):
        cancel_at_the_first()
    with pytest.raises(Interrupted):
        started.result()
    assert started.done()
    cut = load(tmp_path / "out")
    assert 0 < len(given) * CHUNK == cut.counts["data_rows"] < ROWS
    assert list(cut.batches()) == given
    with pytest.raises(PipelineError, match="the run is interrupted, with"):
        list(cut.batches(follow=True))
    OPEN.set()
    assert parts(run(**slow_job(), directory=tmp_path / "out").directory) == parts(whole.directory)


def test_who_is_cancelled_before_its_turn_begins_nothing_and_what_is_refused_says_so(tmp_path):
    first = start(**slow_job(), directory=tmp_path / "first")
    next(first.batches())
    second = start(**slow_job(), directory=tmp_path / "second")
    with pytest.raises(TimeoutError):
        second.result(timeout=0.01)
    second.cancel()
    for ask in (second.result, lambda: list(second.batches())):
        with pytest.raises(Interrupted):
            ask()
    assert not (tmp_path / "second").exists()
    OPEN.set()
    assert first.result().counts["data_rows"] == ROWS
    refused = start("nowhere", directory=tmp_path / "third")
    for ask in (refused.result, lambda: list(refused.batches())):
        with pytest.raises(ConfigError, match="there is no job 'nowhere'"):
            ask()


def test_progress_is_told_in_the_calling_thread_and_what_it_raises_ends_the_run(tmp_path, whole, monkeypatch):
    monkeypatch.setitem(patience, "s", 0.1)
    told: list[tuple[Progress, int]] = []

    def stop(progress: Progress) -> None:
        told.append((progress, threading.get_ident()))
        raise stopped

    for stopped in (ValueError("enough"), Interrupted("enough")):
        with pytest.raises(type(stopped)) as caught:
            run(**slow_job(), directory=tmp_path / "out", on_progress=stop)
        assert caught.value is stopped
    assert len(told) == 2
    assert {ident for _, ident in told} == {threading.get_ident()}
    OPEN.set()
    ends: list[Progress] = []
    made = run(**slow_job(), directory=tmp_path / "out", on_progress=ends.append)
    last = ends[-1]
    assert (last.rows, last.total, last.rejects, last.eta, last.directory) == (ROWS, ROWS, 0, 0.0, made.directory)
    assert parts(made.directory) == parts(whole.directory)


SHOT = Snapshot(0.0, 0, None, False, None, 0, 0, 0.0, 0.0, 0.0, 0, None, "", 0, 0, (), None, ())
COUNT = st.integers(0, 9)


@given(st.lists(st.tuples(COUNT, st.none() | COUNT, COUNT, COUNT, COUNT, COUNT)))
def test_numbers_never_fall(shots):
    told: list[Progress] = []
    control = Control(told.append)
    for at, (rows, total, errors, filtered, tokens_in, tokens_out) in enumerate(shots):
        counts = {"rows": rows, "rows_total": total, "errors": errors, "filtered": filtered}
        shot = replace(SHOT, elapsed_s=2.0 * at, tokens_in=tokens_in, tokens_out=tokens_out, **counts)
        control.tell(shot, Path())
        control.tell(shot, Path())  # not a second later
    assert len(told) == len(shots)
    for name in ("rows", "rejects", "tokens_in", "tokens_out", "seconds"):
        values = [getattr(progress, name) for progress in told]
        assert values == sorted(values)
    assert all(progress.total is None or progress.rows <= progress.total for progress in told)


@pytest.mark.parametrize("output", often(["parquet", "jsonl", "csv", "arrow"], "jsonl"))
def test_batches_of_every_format_are_the_rows(tmp_path, output):
    OPEN.set()
    made = run(**slow_job(output=output), directory=tmp_path / "out")
    batches = list(made.batches())
    assert [batch.num_rows for batch in batches] == [CHUNK] * (ROWS // CHUNK)
    rows = made.rows().collect()
    assert rows["seen"].to_list() == [None] * CHUNK + [row * 10 for row in range(CHUNK, ROWS)]
    assert pl.DataFrame(pa.Table.from_batches(batches)).equals(rows)
    if output == "jsonl":
        with pytest.raises(ConfigError, match="JSON lines have no types until all are there; take output=parquet"):
            list(made.batches(follow=True))
    with pytest.raises(ConfigError, match="has no rows in data/other; folders with rows: data"):
        list(made.batches("data/other"))


def test_rows_that_newer_ones_replace_are_in_no_batch(tmp_path):
    OPEN.set()
    again = {"data.id_column": "n", "append": True, "append_changed": "again", "directory": tmp_path / "out"}
    kept = {key: value for key, value in again.items() if key != "directory"}
    for word in ("old", "new"):
        rows = [{"n": n, "prompt": f"{word if n % 3 else 'same'} {n}"} for n in range(9)]
        made = run(
            "generate", {**kept, "chunk_rows": CHUNK}, rows=rows, model="fake", directory=tmp_path / "out", **QUIET
        )
    rows_now = made.rows().collect()
    assert rows_now.height == 9 < made.counts["data_rows"]
    assert pl.DataFrame(pa.Table.from_batches(made.batches())).equals(rows_now)
    with pytest.raises(ConfigError, match="append_changed=again may replace rows that were given"):
        list(made.batches(follow=True))


ENDS = """
import sys
from pipeline import start
given = {"sampling.max_tokens": 16, "runtime.threads": 1, "chunk_rows": 4}
next(start("quickstart", given, directory=sys.argv[1], progress="none", report=False).batches())
"""


def test_a_program_that_ends_cancels_what_it_has_started(tmp_path):
    command = [sys.executable, "-c", ENDS, str(tmp_path / "out")]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=120)
    assert "the program has ended, and its run with it: the same call goes on" in ended.stderr
    assert "Traceback" not in ended.stderr
    cut = load(tmp_path / "out")
    assert 0 < cut.counts["data_rows"] < 200
