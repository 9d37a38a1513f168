"""What is committed is there after a crash or a power cut (seen by the order in which names are made durable), and
nothing else is."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.api.errors import ConfigError, DamagedError, ExitCode, StorageError
from pipeline.api.meter import RowCounts
from pipeline.api.records import Shard
from pipeline.run_dir.chunk_record import ChunkRecord, OperatorState, RejectCounts
from pipeline.run_dir.names import refuse_foreign, remove_parts, set_aside, wipe
from pipeline.run_dir.state import RunState, RunStatus, ShardRecord
from pipeline.run_dir.state_file import FORMAT, UNSEALED_FORMAT, is_sealed, seal_damage
from tests.pipeline.damage import damaged_values, files, job, run
from tests.sets import often

SCHEMA = pa.schema([pa.field("row", pa.int64())])


def shard(chunk: int, folder: str = "data") -> ShardRecord:
    return ShardRecord(f"{folder}/part-{chunk:05d}.parquet", chunk, 3, 100, "ab" * 32)


@pytest.fixture
def state(tmp_path):
    state = RunState(tmp_path / "state.sqlite")
    state.begin({"seed": 0}, "squares")
    yield state
    state.close()


@pytest.fixture
def commit(tmp_path, state):
    """Commits a chunk of four rows with a file in each of `folders`."""

    def committed(chunk, *folders, rejects=None, attempt=1, **more):
        shards = [
            Shard(s.chunk, tmp_path / s.path, tmp_path, s.rows, s.size_bytes, s.sha256, SCHEMA)
            for s in (shard(chunk, folder) for folder in folders or ("data",))
        ]
        state.commit(attempt, ChunkRecord(chunk, 4, shards, RejectCounts(rejects or {}), **more))

    return committed


def test_all_that_is_committed_is_found_again(tmp_path, state, commit):
    rejects = ({("a", "error", "odd"): 1}, {("a", "error", "odd"): 1, ("b", "filtered", "short"): 2})
    for chunk in range(2):
        assert state.start_attempt("2026-01-01T00:00:00") == chunk + 1
        states = {"limit": OperatorState(b"%d" % chunk), "dedup": OperatorState(b"seen %d" % chunk, append=True)}
        counts = {"write": RowCounts(4, 0, 0, 4)}
        commit(chunk, rejects=rejects[chunk], attempt=chunk + 1, states=states, counts=counts)
        state.end_attempt(1, RunStatus.INTERRUPTED)
    with closing(RunState(tmp_path / "state.sqlite")) as again:
        assert (again.fingerprint, again.status) == ({"seed": 0}, RunStatus.RUNNING)
        assert (again.committed_chunks, again.committed_rows, again.shards()) == (2, 8, [shard(0), shard(1)])
        assert again.rejects() == {("a", "error", "odd"): 2, ("b", "filtered", "short"): 2}
        assert (again.rejects().errors, again.rejects().filtered) == (2, 2)
        assert (again.schemas(), again.accounts()) == ({"data": {"row": "int64"}}, {"write": RowCounts(8, 0, 0, 8)})
        kept = {node: list(states) for node, states in again.operator_states().items()}
        assert kept == {"limit": [b"1"], "dedup": [b"seen 0", b"seen 1"]}


@pytest.mark.parametrize("chunk", [1, 3])
def test_only_the_next_chunk_can_be_committed(commit, chunk):
    with pytest.raises(ConfigError, match=f"chunk {chunk} was to be committed, but the next one is 0"):
        commit(chunk)


def test_a_commit_that_fails_leaves_nothing(state, commit):
    with pytest.raises(sqlite3.Error):
        commit(0, rejects={("node", "error", None): 1})
    assert (state.committed_chunks, state.shards()) == (0, [])


def test_another_programs_database_is_refused(tmp_path):
    db = sqlite3.connect(tmp_path / "state.sqlite")
    db.execute("CREATE TABLE theirs (x)")
    db.close()
    with pytest.raises(ConfigError, match="belongs to another program"):
        RunState(tmp_path / "state.sqlite")


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "state.sqlite").write_text("these are not the bytes of a database" * 100)
    with pytest.raises(ConfigError, match=r"is damaged: file is not a database; .*verify"):
        RunState(tmp_path / "state.sqlite")


def test_uncommitted_parts_go_and_other_files_stay(tmp_path):
    gone = [f"data/part-00001.{end}" for end in ("parquet", "arrow", "jsonl", "jsonl.gz", "jsonl.zst.tmp")]
    names = ["data/part-00000.parquet", *gone, "data/b/part-00000.parquet.tmp", "data/part-one.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert remove_parts(tmp_path, {"data/part-00000.parquet"}) == 6
    assert [name for name in names if (tmp_path / name).exists()] == ["data/part-00000.parquet", "data/part-one.txt"]


def test_a_database_is_put_aside_with_its_log(tmp_path):
    """A log that stayed would be taken for that of the database that is begun in its place."""
    for name in ("state.sqlite", "state.sqlite-wal", "state.sqlite.damaged-shm"):
        (tmp_path / name).touch()
    set_aside(tmp_path / "state.sqlite")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state.sqlite.damaged", "state.sqlite.damaged-wal"]


def test_wipe_leaves_the_lock_and_the_completions(tmp_path):
    for name in (".lock", "completions.sqlite", "state.sqlite", "manifest.json", "run.log"):
        (tmp_path / name).touch()
    wipe(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "completions.sqlite"]


def test_what_a_killed_wipe_leaves_is_no_obstacle(tmp_path):
    for name in ("data/second", "rejects", "metrics/stages"):
        (tmp_path / name).mkdir(parents=True)
    for name in (".lock", "completions.sqlite", "completions.sqlite-wal", "README.md"):
        (tmp_path / name).touch()
    refuse_foreign(tmp_path)
    (tmp_path / "data/second/thesis.tex").touch()
    with pytest.raises(ConfigError, match="not a run's"):
        refuse_foreign(tmp_path)


@pytest.mark.parametrize("version", [UNSEALED_FORMAT - 1, FORMAT + 1])
def test_a_state_of_another_format_is_refused(tmp_path, state, version):
    with closing(sqlite3.connect(tmp_path / "state.sqlite")) as db:
        db.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(ConfigError, match=rf"another version of this program \(format {version}, .*output_dir="):
        RunState(tmp_path / "state.sqlite")


@pytest.mark.parametrize("bits", often([1, 8], 1))
def test_no_value_can_change_unseen(tmp_path, state, commit, bits):
    """A bit of any value of any table, or a row that goes, leaves a file in which SQLite's own check finds nothing."""
    state.note(config="seed: 0", origin={"directory": "there"}, identity={"the model": "tiny"})
    for attempt in (1, 2):
        state.start_attempt("2026-01-01T00:00:00")
        states = {"limit": OperatorState(b"\0" * attempt), "dedup": OperatorState(b"seen\xff", append=True)}
        counts = {"write": RowCounts(4, 0, 0, 4, Counter({"late": 2}))}
        commit(attempt - 1, "data", "rejects", rejects={("n", "error", "r"): 1}, states=states, counts=counts)
        state.note_published("s3://bucket", shard(0).path, shard(attempt).sha256)
    state.end_attempt(2, RunStatus.DONE)
    with closing(sqlite3.connect(tmp_path / "state.sqlite", isolation_level=None)) as db:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
            db.backup(copy)
            assert seal_damage(copy) is None
            assert [what for what in damaged_values(copy, bits) if seal_damage(copy) is None] == []
        db.execute("UPDATE chunks SET rows = 5 WHERE chunk = 1")
    with pytest.raises(DamagedError, match=r"state.sqlite has other values than were written .*verify .*repair=true"):
        RunState(tmp_path / "state.sqlite")


def test_a_state_without_a_seal_gets_one_when_it_is_written(tmp_path, state, commit):
    commit(0)
    with closing(sqlite3.connect(tmp_path / "state.sqlite")) as db:
        db.executescript(f"DROP TABLE seal; PRAGMA user_version = {UNSEALED_FORMAT}")
        assert not is_sealed(db)
        with closing(RunState(tmp_path / "state.sqlite")) as again:
            assert not is_sealed(db)
            again.start_attempt("2026-01-01T00:00:00")
        assert is_sealed(db)
        assert seal_damage(db) is None
        db.execute("UPDATE chunks SET rows = 5")
        assert seal_damage(db) is not None


def test_what_is_published_is_missing_until_it_is_noted(commit, state):
    commit(0)
    commit(1)
    for url in ("s3://bucket", "s3://other"):
        state.note_published(url, shard(0).path, shard(0).sha256)
    assert state.unpublished("s3://bucket", 10) == [shard(1)]
    assert state.unpublished("s3://new", 10) == [shard(0), shard(1)]
    state.forget_published([shard(0).path], "s3://bucket")
    assert state.unpublished("s3://bucket", 10) == [shard(0), shard(1)]
    assert state.published("s3://other", shard(0).path) == shard(0).sha256
    state.forget_published([shard(0).path])
    assert state.published("s3://other", shard(0).path) is None


def test_a_file_is_no_output_directory(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(ConfigError, match="is a file"):
        refuse_foreign(tmp_path / "out")


@pytest.mark.parametrize("name", ["data", "rejects", "metrics"])
def test_overwriting_removes_nothing_behind_a_link(tmp_path, name):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    assert run(job(out)) is ExitCode.DONE
    (out / name).rename(elsewhere) if (out / name).exists() else elsewhere.mkdir()
    (out / name).symlink_to(elsewhere)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=f"{name} is a symbolic link to .*elsewhere, and overwrite=true removes"):
        run(job(out, overwrite=True))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_with_the_name_of_a_file_is_refused_before_anything_is_removed(tmp_path):
    run(job(tmp_path))
    (tmp_path / "run.log").unlink()
    (tmp_path / "run.log").mkdir()
    before = files(tmp_path)
    with pytest.raises(ConfigError, match=r"run.log is a folder, where a run has a file; move it away"):
        run(job(tmp_path, overwrite=True))
    assert files(tmp_path) == before
    with pytest.raises(StorageError, match=r"run.log cannot be written: Is a directory.*; a folder has that name"):
        run(job(tmp_path, max_open_chunks=2))


LATER = ("config.yaml", "status.json")
"""What a repair or the next second writes again."""


def test_names_are_durable_before_the_state_speaks_of_them(tmp_path, monkeypatch):
    """New folders, shards, the manifest and merged metrics; and the content of a file before its name."""
    pending: set[Path] = set()
    synced: set[Path] = set()
    said: list[str] = []

    def of(handle: int) -> Path:
        return Path(f"/proc/self/fd/{handle}").readlink()

    def fsync(handle: int) -> None:
        path = of(handle)
        real_fsync(handle)
        synced.add(path)
        pending.difference_update({name for name in pending if name.parent == path})

    def mkdir(path: Path, *arguments: object, **more: object) -> None:
        new = not path.exists()
        real_mkdir(path, *arguments, **more)  # type: ignore[arg-type]
        if new:
            pending.add(path)

    def replace(path: Path, target: Path) -> Path:
        assert path in synced, path
        pending.add(target)
        return real_replace(path, target)

    def checked(real: Callable[..., None]) -> Callable[..., None]:
        def say(*arguments: object) -> None:
            # Streams of metrics, which a tick of the clock begins, are spoken of when they are merged.
            assert {path for path in pending if path.name not in LATER and path.parent.name != "metrics"} == set()
            said.append(real.__name__)
            real(*arguments)

        return say

    real_fsync, real_mkdir, real_replace = os.fsync, Path.mkdir, Path.replace
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "replace", replace)
    for name in ("commit", "end_attempt"):
        monkeypatch.setattr(RunState, name, checked(getattr(RunState, name)))
    assert run(job(tmp_path / "new" / "out")) is ExitCode.DONE
    assert said == ["commit"] * 5 + ["end_attempt"]
