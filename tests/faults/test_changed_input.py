"""An input that is not what it was is noticed: between two attempts by its content, within one by its size and time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from operators.rows.content import WHOLE_UP_TO_BYTES
from operators.settings import DataSettings
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import ConfigError, ExitCode, InputError
from pipeline.api.protocols import Operator, Runtime
from pipeline.api.records import Batch, Output
from pipeline.settings import JobSettings, NodeSettings
from tests.pipeline.squares import run
from tests.sets import often

OPS = "tests.pipeline.job_ops"


def job(tmp_path: Path, op: dict[str, Any] | None = None, name: str = "out") -> JobSettings:
    """Reads rows.jsonl in chunks of ten; `op` stands between the source and Square."""
    data = {"path": str(tmp_path / "rows.jsonl")}
    read = {"_target_": "operators.sources.read_prompts.ReadPrompts", "data": data, "chunk_rows": 10}
    between = op or {"_target_": f"{OPS}.Square", "fail_at": 37, "broken": str(tmp_path / "broken")}
    nodes = {
        "read": NodeSettings(read),
        "between": NodeSettings(between, "read"),
        "write": NodeSettings({"_target_": f"{OPS}.Parquet"}, "between"),
    }
    return JobSettings(name="reads", nodes=nodes, output_dir=str(tmp_path / name), progress="none", max_open_chunks=1)


def meddles(tmp_path: Path, act: str, when: Any) -> dict[str, Any]:
    path, done = str(tmp_path / "rows.jsonl"), str(tmp_path / "done")
    return {"_target_": f"{__name__}.Meddles", "path": path, "act": act, "when": when, "done": done}


def committed(directory: Path) -> list[int]:
    found = sorted((directory / "data").glob("*.parquet"))
    return [x for path in found for x in pq.read_table(path)["x"].to_pylist()]


@pytest.fixture(autouse=True)
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"x": {i}}}\n' for i in range(45)))
    return path


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write('{"x": 45}\n')


def edit_unseen(path: Path) -> None:
    """Another content of the same size and modification time."""
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes().replace(b'{"x": 44}', b'{"x": 99}'))
    os.utime(path, ns=times)


@pytest.mark.parametrize("finished", often([False, True], True))
@pytest.mark.parametrize("change", [append, edit_unseen])
def test_a_changed_input_is_refused_with_the_key_and_both_values(tmp_path, rows, change, finished):
    if not finished:
        (tmp_path / "broken").touch()
    assert run(job(tmp_path)) is (ExitCode.DONE if finished else ExitCode.FAILED)
    size = rows.stat().st_size
    change(rows)
    named = rf'nodes.read.files.0: "rows.jsonl, {size} bytes, sha256:\w+" -> "rows.jsonl, \d+ bytes, sha256:\w+"'
    with pytest.raises(ConfigError, match=named):
        run(job(tmp_path))


def test_of_a_file_that_is_only_sampled_the_time_counts_too(tmp_path):
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        file.truncate(WHOLE_UP_TO_BYTES + 1)  # a hole: takes no room

    def fingerprint() -> str:
        return str(ReadPrompts(DataSettings(path=str(path)), 10).fingerprint()["files.0"])

    before = fingerprint()
    assert f"{WHOLE_UP_TO_BYTES + 1} bytes, sampled:" in before
    os.utime(path, ns=(0, 1_000_000_000))
    assert fingerprint() != before
    assert "changed 1970-01-01T00:00:01" in fingerprint()


@pytest.mark.parametrize("act", often(["append", "unlink"], "append"))
def test_an_input_that_changes_while_it_is_read_ends_the_run_before_the_next_commit(tmp_path, rows, caplog, act):
    whole = rows.read_bytes()
    settings = job(tmp_path, meddles(tmp_path, act, 22))
    assert run(settings) is ExitCode.CONFIG
    assert f"{rows} was written to while" in caplog.text or f"{rows} is not there any more" in caplog.text
    assert "Traceback" not in (tmp_path / "out/run.log").read_text()
    assert committed(tmp_path / "out") in (list(range(20)), list(range(30)))  # chunk 2 may have been on its way
    rows.write_bytes(whole)
    assert run(settings) is ExitCode.DONE
    assert committed(tmp_path / "out") == list(range(45))


def test_an_input_that_is_gone_before_it_is_fingerprinted(tmp_path, rows):
    with pytest.raises(InputError, match=rf"{rows} is not there any more; put it back"):
        run(job(tmp_path, meddles(tmp_path, "unlink", "plan")))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("act", often(["append", "unlink"], "unlink"))
def test_an_input_that_changes_between_plan_and_open(tmp_path, rows, caplog, act):
    assert run(job(tmp_path, meddles(tmp_path, act, "fingerprint"))) is ExitCode.CONFIG
    assert {s["rows_out"] for s in pq.read_table(tmp_path / "out/metrics/stages.parquet").to_pylist()} == {0}
    assert f"{rows} was written to while" in caplog.text or f"{rows} is not there any more" in caplog.text
    assert committed(tmp_path / "out") == []


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_the_next_file_of_a_directory_is_gone_when_its_turn_comes(tmp_path, rows, caplog, suffix):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, start in (("a", 0), ("b", 20)):
        table = pa.table({"x": list(range(start, start + 20))})
        path = folder / f"{name}.{suffix}"
        if suffix == "parquet":
            pq.write_table(table, path)
        else:
            path.write_text("".join(f'{{"x": {x}}}\n' for x in range(start, start + 20)))
    op = meddles(tmp_path, "unlink", 12) | {"path": str(folder / f"b.{suffix}")}
    settings = job(tmp_path, op)
    settings.nodes["read"].op["data"] = {"path": str(folder)}
    assert run(settings) is ExitCode.CONFIG
    assert f"{folder / f'b.{suffix}'} is not there any more; put it back as it was" in caplog.text
    assert committed(tmp_path / "out") in (list(range(10)), list(range(20)))


class Meddles(Operator):
    """Calls `act` on the file `path`: when the run is planned (`when`: plan), after its fingerprint (fingerprint), or
    at x = `when`. Does nothing once the file `done` exists.

    Args:
        act: unlink, append, or edit (a byte, with size and modification time as before).
    """

    def __init__(self, path: str, act: str, when: Any, done: str) -> None:
        self.path, self.act, self.when, self.done = Path(path), act, when, Path(done)

    def plan(self, schema: pa.Schema) -> pa.Schema:
        if self.when == "plan":
            self.meddle()
        return schema

    def fingerprint(self) -> dict[str, Any]:
        if self.when == "fingerprint":
            self.meddle()
        return {}

    def open(self, runtime: Runtime) -> None:
        """Nothing."""

    def process(self, batch: Batch) -> Iterable[Output]:
        if self.when in batch.data.column("x").to_pylist():
            self.meddle()
        yield batch

    def meddle(self) -> None:
        if self.done.exists():
            return
        self.done.touch()
        if self.act == "unlink":
            self.path.unlink()
        elif self.act == "append":
            with self.path.open("a") as file:
                file.write('{"x": 4711}\n')
