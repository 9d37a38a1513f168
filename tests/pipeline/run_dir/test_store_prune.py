"""Pruning a store: nothing younger goes, what stays is whole, and a run makes again what it misses."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.engine.sampling.logprobs import Scored
from operators.generation.journal import StoredCompletion
from operators.generation.store import CompletionStore
from pipeline.api.errors import ConfigError, ExitCode, PipelineError
from pipeline.cli.main import main
from pipeline.run_dir.store_check import RowCheck, check_rows
from pipeline.run_dir.store_prune import Pruned, _delete, prune


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def made(path: Path, count: int, text: str = "text") -> Path:
    store = CompletionStore(path)
    scores = (Scored(-1.0, ((2, -1.0),)),)
    store.put({key(i + 1): StoredCompletion([2], f"{text} {i}", "stop", scores) for i in range(count)})
    store.close()
    return path


def sql(path: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(statement, values).fetchall()


def left(path: Path) -> list[int]:
    return [int.from_bytes(k, "big") for (k,) in sql(path, "SELECT key FROM completions ORDER BY key")]


@settings(max_examples=15, deadline=None)
@given(times=st.lists(st.none() | st.integers(0, 9), max_size=9), since=st.integers(0, 9), before=st.integers(0, 9))
def test_what_is_younger_stays(
    tmp_path_factory: pytest.TempPathFactory, times: list[int | None], since: int, before: int
) -> None:
    path = made(tmp_path_factory.mktemp("store") / "store.sqlite", len(times))
    for i, at in enumerate(times):
        sql(
            path,
            "DELETE FROM used WHERE key = ?" if at is None else f"UPDATE used SET at = {at} WHERE key = ?",
            key(i + 1),
        )
    sql(path, "UPDATE used SET at = ? WHERE key = x''", since)
    young = [i + 1 for i, at in enumerate(times) if (since if at is None else at) >= before]
    only_counted = prune(path, before, dry_run=True)
    assert left(path) == [*range(1, len(times) + 1)]
    pruned = prune(path, before, dry_run=False)
    assert (pruned.entries, pruned.old, pruned.undated) == (len(times), len(times) - len(young), times.count(None))
    assert pruned._replace(freed_bytes=0) == only_counted
    assert left(path) == young
    for table in ("logprobs", "used WHERE key != x'' AND "):
        keys = sql(path, f"SELECT key FROM {table.replace('AND ', '')} ORDER BY key")
        assert {k for (k,) in keys} <= {key(i) for i in young}
    store = CompletionStore(path)
    assert {k: v.text for k, v in store.find([key(i + 1) for i in range(len(times))]).items()} == {
        key(i): f"text {i - 1}" for i in young
    }
    assert check_rows(store._reader) == RowCheck(0, 0)
    store.close()


def test_what_was_served_or_written_again_counts_as_used(tmp_path: Path) -> None:
    path = made(tmp_path / "store.sqlite", 4)
    sql(path, "UPDATE used SET at = 1")
    store = CompletionStore(path)
    store.find([key(2), key(9)])
    store.put({key(3): StoredCompletion([2], "again", "stop")})
    store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert _delete(db, [key(1), key(2)], 2) == 1, "2 was served since it was looked at"
    assert left(path) == [2, 3, 4]
    assert prune(path, 2, dry_run=False).old == 1
    assert left(path) == [2, 3]


def test_a_store_of_before_keeps_all_until_it_has_times(tmp_path: Path) -> None:
    path = made(tmp_path / "store.sqlite", 3)
    for what in ("TRIGGER written", "TABLE used"):
        sql(path, f"DROP {what}")
    never = int(time.time()) + 9999
    assert prune(path, never, dry_run=False)._replace(freed_bytes=0) == Pruned(entries=3, undated=3)
    CompletionStore(path).close()
    sql(
        path,
        "INSERT INTO completions SELECT x'09', ids, text, finish_reason, least, run, seal FROM completions LIMIT 1",
    )
    assert sql(path, "SELECT COUNT(*) FROM used WHERE key = x'09'") == [(1,)], "what another version writes has a time"
    pruned = prune(path, 2, dry_run=True)
    assert (pruned.undated, pruned.old, pruned.since is not None) == (3, 0, True)
    assert prune(path, never, dry_run=False).old == 4


def test_beside_a_run_it_waits_and_gives_the_space_back_later(tmp_path: Path) -> None:
    path = made(tmp_path / "store.sqlite", 2000, "x" * 500)
    sql(path, "UPDATE used SET at = 1")
    store = CompletionStore(path)
    stop = threading.Event()

    def write() -> None:
        number = 5000
        while not stop.is_set():
            store.write({key(number := number + 1): StoredCompletion([2], "new", "stop")}, set())

    writer = threading.Thread(target=write)
    writer.start()
    try:
        pruned = prune(path, 2, dry_run=False)
    finally:
        stop.set()
        writer.join()
    assert (pruned.old, pruned.in_use, pruned.freed_bytes) == (2000, True, 0)
    assert min(left(path)) == 5001
    store.close()
    before = path.stat().st_size
    freed = prune(path, 2, dry_run=False).freed_bytes
    assert freed > 1_000_000
    assert path.stat().st_size == before - freed
    assert min(left(path)) == 5001


def cut_off(seconds: float) -> None:
    raise KeyboardInterrupt


def test_what_is_cut_off_leaves_a_whole_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "store.sqlite", 1200)
    sql(path, "UPDATE used SET at = 1")
    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", cut_off)
        with pytest.raises(KeyboardInterrupt):
            prune(path, 2, dry_run=False)
    assert len(left(path)) == 700
    with closing(sqlite3.connect(path)) as db:
        assert check_rows(db) == RowCheck(0, 0)
    assert prune(path, 2, dry_run=False).old == 700


def test_what_is_no_store_is_left_as_it_is(tmp_path: Path) -> None:
    sql(tmp_path / "other.sqlite", "CREATE TABLE completions (key)")
    for name, content in (("text", b"no database\n" * 500), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
    for name, why in (
        ("other.sqlite", "is no"),
        ("text", "is no"),
        ("empty", "is no"),
        (".", "is a folder"),
        ("x", "not"),
    ):
        before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
        with pytest.raises(ConfigError, match=why):
            prune(tmp_path / name, 2, dry_run=False)
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_damaged_store_is_told(tmp_path: Path) -> None:
    path = made(tmp_path / "store.sqlite", 50, "x" * 3000)
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(PipelineError, match="cannot be pruned"):
        prune(path, 2, dry_run=False)


def test_a_run_makes_again_what_it_misses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, out = tmp_path / "store.sqlite", tmp_path / "out"
    job = [
        "job=quickstart",
        "data.limit=6",
        f"store.path={store}",
        f"output_dir={out}",
        "report=false",
        "progress=none",
    ]

    def run() -> dict[str, bytes]:
        assert main([*job, "overwrite=true"]) == ExitCode.DONE
        return {part.name: part.read_bytes() for part in (out / "data").iterdir()}

    results, entries = run(), len(left(store))
    sql(store, "UPDATE used SET at = 1 WHERE key IN (SELECT key FROM completions ORDER BY key LIMIT 3)")
    capsys.readouterr()
    for words, said in (
        (["older=30d", "dry_run=true"], "would be removed"),
        (["--older", "30d", "--dry-run"], "would be removed"),
        (["--older=12h"], "removed, not used for 12h"),
    ):
        assert main(["prune", *words, str(store)]) == ExitCode.DONE
        printed = capsys.readouterr().out
        assert f"3 of {entries} entries" in printed
        assert said in printed
    assert len(left(store)) == entries - 3
    assert run() == results
    assert len(left(store)) == entries
    for words, why in (
        (["older=1m"], "older=1m is no time"),
        ([], "older= is no time"),
        (["older=1d", "x"], "one store"),
    ):
        assert main(["prune", str(store), *words]) == ExitCode.CONFIG
        assert why in capsys.readouterr().err
