"""What an operator remembers is committed with each chunk: a resumed run gives what an uninterrupted one gives."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.run_dir.state import RunState
from pipeline.settings import JobSettings, NodeSettings
from tests.pipeline.squares import files, run
from tests.sets import often

OPS, STATEFUL = "tests.pipeline.job_ops", "tests.pipeline.stateful_ops"
SUM = {"_target_": f"{STATEFUL}.RunningSum"}
BY_CHUNK = {"_target_": f"{STATEFUL}.SumByChunk"}
FIRST = {"_target_": f"{STATEFUL}.FirstOfEach", "modulo": 41}


def job(directory: Path, op: dict[str, Any], broken: Path, max_open_chunks: int = 1, rows: int = 45) -> JobSettings:
    fails = {"_target_": f"{OPS}.Square", "fail_at": 37, "broken": str(broken)}
    nodes = {
        "numbers": NodeSettings({"_target_": f"{OPS}.Numbers", "rows": rows}),
        "remembers": NodeSettings(op, "numbers"),
        "square": NodeSettings(fails, "remembers"),
        "write": NodeSettings({"_target_": f"{OPS}.Parquet"}, "square"),
    }
    return JobSettings(
        name="stateful", nodes=nodes, output_dir=str(directory), progress="none", max_open_chunks=max_open_chunks
    )


def kept(directory: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(directory / "state.sqlite")) as db:
        return db.execute("SELECT node, chunk, state FROM operator_state ORDER BY chunk").fetchall()


def chunks(directory: Path) -> int:
    with closing(sqlite3.connect(directory / "state.sqlite")) as db:
        return int(db.execute("SELECT COUNT(*) FROM chunks").fetchone()[0])


# FirstOfEach is a chunk ahead of what it ends, so at least two chunks must be open.
@pytest.mark.parametrize(
    ("op", "max_open_chunks"),
    [
        *((SUM, 1), (BY_CHUNK, 8), (FIRST, 3)),
        *(pytest.param(*case, marks=pytest.mark.laws) for case in ((SUM, 8), (BY_CHUNK, 1), (FIRST, 2))),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, op, max_open_chunks):
    broken = tmp_path / "broken"
    assert run(job(tmp_path / "whole", op, broken, max_open_chunks)) is ExitCode.DONE
    broken.touch()
    out = tmp_path / "out"
    assert run(job(out, op, broken, max_open_chunks)) is ExitCode.FAILED
    assert chunks(out) >= 3 - (max_open_chunks - 1)
    broken.unlink()
    assert run(job(out, op, broken, max_open_chunks)) is ExitCode.DONE
    assert files(out) == files(tmp_path / "whole")


def test_the_state_is_that_of_the_last_committed_chunk_and_no_older_one_is_kept(tmp_path):
    (tmp_path / "broken").touch()
    assert run(job(tmp_path / "out", SUM, tmp_path / "broken")) is ExitCode.FAILED
    assert kept(tmp_path / "out") == [("remembers", 2, str(sum(range(30))).encode())]


def test_what_is_added_is_written_with_its_chunk_and_never_again(tmp_path):
    """So what is written at a chunk does not grow with the run."""
    (tmp_path / "broken").touch()
    assert run(job(tmp_path / "out", BY_CHUNK, tmp_path / "broken")) is ExitCode.FAILED
    each = [("remembers", k, str(list(range(10 * k, 10 * k + 10))).encode()) for k in range(3)]
    assert kept(tmp_path / "out") == each


def test_an_operator_that_is_ahead_is_asked_for_the_chunk_that_it_ends(tmp_path):
    """It ends chunk 2 when it has seen all rows of chunk 3, where the next node fails."""
    (tmp_path / "broken").touch()
    assert run(job(tmp_path / "out", FIRST, tmp_path / "broken", max_open_chunks=2)) is ExitCode.FAILED
    ((node, chunk, state),) = kept(tmp_path / "out")
    assert (node, chunk) == ("remembers", chunks(tmp_path / "out") - 1)
    assert state == str(list(range(10 * chunk + 10))).encode()


def test_a_state_that_is_no_bytes_is_refused_with_the_node(tmp_path, caplog):
    assert run(job(tmp_path, {"_target_": f"{STATEFUL}.WrongState"}, tmp_path / "broken")) is ExitCode.FAILED
    assert "node 'remembers' failed: TypeError: state(0) gave str; it must give bytes" in caplog.text


@pytest.mark.parametrize("op", often([SUM, BY_CHUNK], SUM))
def test_an_operator_whose_state_was_never_kept_cannot_go_on(tmp_path, op):
    broken, out = tmp_path / "broken", tmp_path / "out"
    broken.touch()
    run(job(out, op, broken))
    with closing(RunState(out / "state.sqlite")) as state, state._transaction():
        state._db.execute("DELETE FROM operator_state")
    with pytest.raises(ConfigError, match=r"node 'remembers': keeps state between chunks, but none is in .*overwrite="):
        run(job(out, op, broken))
