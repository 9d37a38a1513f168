"""`verify` finds every kind of damage and names it; `repair=true` makes what is damaged again, and nothing else."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import hydra
import pyarrow.parquet as pq
import pytest

from pipeline import config
from pipeline.__main__ import main
from pipeline.channel import Inbox
from pipeline.construct import build_graph
from pipeline.errors import DamagedError, ExitCode
from pipeline.fingerprint import fingerprint_of
from pipeline.jobs import JOBS, PROJECT, find_job
from pipeline.meter import StageMeter
from pipeline.records import ChunkEnd
from pipeline.redo import Excerpt
from pipeline.run import run_job
from pipeline.runtime import Resources
from pipeline.saved_settings import dumped, settings_from
from pipeline.settings import JobSettings, NodeSettings
from tests.pipeline.job_ops import Numbers

OPS = "tests.pipeline.job_ops"
ODD, LAST = "data/part-00002.parquet", "data/part-00004.parquet"
REJECT = "rejects/part-00004.parquet"


def job(directory: Path, square: dict[str, Any] | None = None, **settings: Any) -> JobSettings:
    nodes = {
        "numbers": NodeSettings({"_target_": f"{OPS}.Numbers", "rows": 45}),
        "square": NodeSettings({"_target_": f"{OPS}.Square", "bad": [4, 41], **(square or {})}, "numbers"),
        "write": NodeSettings({"_target_": f"{OPS}.Parquet"}, "square"),
    }
    return JobSettings(
        name="squares", nodes=nodes, output_dir=str(directory), progress="none", max_error_rate=1.0, **settings
    )


def run(settings: JobSettings) -> ExitCode:
    return run_job(settings, Resources())


def files(directory: Path) -> dict[str, bytes]:
    found = [p for folder in ("data", "rejects") for p in (directory / folder).rglob("*") if p.is_file()]
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in found}


def inodes(directory: Path) -> dict[str, int]:
    return {name: (directory / name).stat().st_ino for name in files(directory)}


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)


def garbage(path: Path) -> None:
    path.write_bytes(b"these are not the bytes of a database" * 300)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The results of a finished run, with rejects in the chunks 0 and 4."""
    assert run(job(tmp_path / "out")) is ExitCode.DONE
    return tmp_path / "out"


DAMAGES: list[tuple[str, Callable[[Path], None], str]] = [
    (ODD, Path.unlink, "is missing"),
    (ODD, cut, "bytes, "),
    (ODD, flip, "has other bytes than were written"),
    (LAST, empty, "has 0 bytes"),
    (REJECT, Path.unlink, "is missing"),
    ("manifest.json", Path.unlink, "is missing"),
    ("manifest.json", cut, "cannot be read"),
    ("manifest.json", lambda path: path.write_text("{}"), "is not what the state of the run says"),  # type: ignore
    ("config.yaml", cut, "is not what the run wrote"),
    ("config.yaml", Path.unlink, "is missing"),
    ("metrics/stages.parquet", cut, "cannot be read"),
    ("state.sqlite", garbage, "is damaged: file is not a database"),
    ("state.sqlite", cut, "is damaged"),
    ("state.sqlite", empty, "is empty"),
    ("state.sqlite", Path.unlink, "is missing"),
]


@pytest.mark.parametrize(("name", "damage", "what"), DAMAGES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_damage_is_named_and_mended_to_the_same_bytes(out, capsys, name, damage, what):
    before, manifest = files(out), json.loads((out / "manifest.json").read_text())
    kept = inodes(out)
    damage(out / name)
    assert main(["verify", str(out)]) == ExitCode.FAILED
    shown = capsys.readouterr().out
    assert f"damaged  {name} " in shown
    assert what in shown
    assert "1 damaged" in shown
    assert f"verify {out} repair=true" in shown
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    assert "all is whole" in capsys.readouterr().out
    assert files(out) == before
    assert json.loads((out / "manifest.json").read_text()) == manifest
    if name.startswith(("data", "rejects")):
        others = {n: i for n, i in kept.items() if Path(n).name != Path(name).name}
        assert {n: i for n, i in inodes(out).items() if n in others} == others
    assert run(job(out)) is ExitCode.DONE


def test_several_at_once(out):
    before = files(out)
    for name in (ODD, LAST, REJECT, "data/part-00000.parquet"):
        flip(out / name)
    (out / "manifest.json").unlink()
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    assert files(out) == before


def test_what_is_whole_is_said_and_nothing_is_touched(out, capsys):
    times = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and p.name != ".lock"}
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "squares, done, 5 chunks, 45 rows" in shown
    for line in (
        "state.sqlite",
        "data/: 5 files, 43 rows",
        "rejects/: 2 files, 2 rows",
        "manifest.json",
        "config.yaml",
    ):
        assert f"  whole    {line}\n" in shown
    assert {p: p.stat().st_mtime_ns for p in times} == times


def test_files_of_nobody_are_a_remark(out, capsys):
    (out / "data/part-00009.parquet").write_bytes(b"of a chunk that was never committed")
    (out / "data/part-00005.parquet.tmp").write_bytes(b"half")
    assert main(["verify", str(out)]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "remark   data/part-00009.parquet belongs to no committed chunk" in shown
    assert "remark   data/part-00005.parquet.tmp belongs" in shown


@pytest.mark.parametrize("fail_at", [11, 31])
def test_a_damaged_chunk_is_made_again_alone(tmp_path, fail_at):
    """The operator would fail in the chunk before and in the one after."""
    broken = tmp_path / "broken"
    settings = job(tmp_path / "out", {"fail_at": fail_at, "broken": str(broken)})
    assert run(settings) is ExitCode.DONE
    before = files(tmp_path / "out")
    flip(tmp_path / "out" / ODD)
    broken.touch()
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.DONE
    assert files(tmp_path / "out") == before


def test_an_excerpt_seeks_where_the_source_can_and_passes_over_rows_where_it_cannot():
    class CannotSeek(Numbers):
        seek = None  # type: ignore[assignment]  # as if it had none

    for source in (Numbers(45), CannotSeek(45)):
        items = list(Excerpt(source, 2, 3).run(Inbox(StageMeter("source"))))
        assert [item.chunk for item in items if isinstance(item, ChunkEnd)] == [2, 3]
        assert {item.chunk for item in items} == {2, 3}
        assert source.first == (0 if source.seek is None else 2)


def test_a_chunk_that_comes_out_otherwise_is_not_taken(tmp_path, capsys):
    values = tmp_path / "values"
    settings = job(tmp_path / "out")
    settings.nodes["square"].op = {"_target_": f"{OPS}.AddFrom", "path": str(values)}
    values.write_text("1")
    assert run(settings) is ExitCode.DONE
    values.write_text("2")
    flip(tmp_path / "out" / ODD)
    before = files(tmp_path / "out")
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.FAILED
    assert f"made again, these have other bytes than before: {ODD}" in capsys.readouterr().err
    assert files(tmp_path / "out") == before


def test_an_unfinished_run_is_mended_as_far_as_it_is_committed(tmp_path, capsys):
    broken = tmp_path / "broken"
    square = {"fail_at": 27, "broken": str(broken)}
    run(job(tmp_path / "whole", square, max_open_chunks=1))
    broken.touch()
    out = tmp_path / "out"
    assert run(job(out, square, max_open_chunks=1)) is ExitCode.FAILED
    cut(out / "data/part-00001.parquet")
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    assert "squares, failed, 2 chunks, 20 rows" in capsys.readouterr().out
    broken.unlink()
    assert run(job(out, square, max_open_chunks=1)) is ExitCode.DONE
    assert files(out) == files(tmp_path / "whole")


def test_with_operators_that_remember_all_chunks_before_are_gone_through(tmp_path):
    settings = job(tmp_path / "out")
    settings.nodes["square"].op = {"_target_": "tests.pipeline.stateful_ops.RunningSum"}
    assert run(settings) is ExitCode.DONE
    before, kept = files(tmp_path / "out"), inodes(tmp_path / "out")
    flip(tmp_path / "out" / ODD)
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.DONE
    assert files(tmp_path / "out") == before
    assert {n for n, i in inodes(tmp_path / "out").items() if i != kept[n]} <= {ODD}


def test_a_lost_state_keeps_the_old_files_until_they_are_made_again(tmp_path):
    broken = tmp_path / "broken"
    settings = job(tmp_path / "out", {"fail_at": 27, "broken": str(broken)}, max_open_chunks=1)
    assert run(settings) is ExitCode.DONE
    before = files(tmp_path / "out")
    garbage(tmp_path / "out/state.sqlite")
    broken.touch()
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.FAILED
    assert files(tmp_path / "out") == before
    assert (tmp_path / "out/state.sqlite.damaged").exists()
    broken.unlink()
    (tmp_path / "out/data/part-00007.parquet").write_bytes(b"of nobody")
    assert run(settings) is ExitCode.DONE
    assert files(tmp_path / "out") == before


def test_a_changed_input_is_named_and_nothing_is_mended(tmp_path, capsys):
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(f'{{"x": {i}}}\n' for i in range(20)))
    settings = job(tmp_path / "out")
    settings.nodes["numbers"].op = {
        "_target_": "operators.sources.read_prompts.ReadPrompts",
        "data": {"path": str(source)},
        "chunk_rows": 10,
    }
    assert run(settings) is ExitCode.DONE
    flip(tmp_path / "out/data/part-00001.parquet")
    before = files(tmp_path / "out")
    with source.open("a") as file:
        file.write('{"x": 99}\n')
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.CONFIG
    assert 'nodes.numbers.files.0: "rows.jsonl, ' in capsys.readouterr().err
    assert files(tmp_path / "out") == before


def test_without_settings_the_command_that_made_it_is_asked_for(out, capsys):
    garbage(out / "state.sqlite")
    (out / "config.yaml").write_text("nodes: [")
    assert main(["verify", str(out), "repair=true"]) == ExitCode.CONFIG
    assert "run the command that made" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["out", "repair=maybe"], ["out", "mend=true"]])
def test_arguments_that_make_no_sense(arguments, capsys):
    assert main(["verify", *arguments]) == ExitCode.CONFIG
    assert "repair=true" in capsys.readouterr().err


def test_a_directory_of_something_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main(["verify", str(tmp_path), "repair=true"]) == ExitCode.CONFIG
    assert "is no run's directory" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "nowhere")]) == ExitCode.CONFIG
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_while_a_run_works_there_nothing_is_looked_at(out, capsys):
    with (out / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump({"pid": 4711, "host": "elsewhere", "since": "2026-11-21T10:00:00"}, file)
        file.flush()
        assert main(["verify", str(out), "repair=true"]) == ExitCode.CONFIG
    assert "another run (pid 4711 on elsewhere" in capsys.readouterr().err


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("damage", [Path.unlink, cut])
def test_a_resume_refuses_what_is_missing_or_cut_and_names_the_remedy(tmp_path, finished, damage):
    broken = tmp_path / "broken"
    settings = job(tmp_path / "out", {"fail_at": 27, "broken": str(broken)}, max_open_chunks=1)
    if not finished:
        broken.touch()
    run(settings)
    damage(tmp_path / "out/data/part-00001.parquet")
    with pytest.raises(
        DamagedError, match=r"data/part-00001.parquet (is missing|has .* bytes).*\n.*verify .*repair=true"
    ):
        run(settings)
    settings.overwrite = True
    broken.unlink(missing_ok=True)
    assert run(settings) is ExitCode.DONE


@pytest.mark.parametrize(("damage", "says"), [(empty, "is empty, but there are results"), (Path.unlink, "is gone")])
def test_results_without_a_state_are_never_begun_over_in_silence(out, damage, says):
    before = files(out)
    damage(out / "state.sqlite")
    with pytest.raises(Exception, match=rf"{says}.*verify .*repair=true"):
        run(job(out))
    assert files(out) == before
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    assert files(out) == before
    assert run(job(out)) is ExitCode.DONE


def test_a_damaged_state_is_refused_with_the_remedy(out):
    garbage(out / "state.sqlite")
    with pytest.raises(DamagedError, match=r"state.sqlite is damaged: .*verify .* repair=true"):
        run(job(out))


@pytest.mark.parametrize("name", sorted(path.stem for path in JOBS.glob("*.yaml")))
def test_saved_settings_are_the_job_again(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config.register()
    found = find_job(name, [])
    config.register_job(found)
    overrides = [f"job={found.key}", "model=fake", f"data.path={JOBS / 'data/quickstart.jsonl'}"]
    with hydra.initialize_config_dir(str(config.CONF), version_base="1.3"):
        settings = config.settings_of(hydra.compose("config", overrides))
    again = settings_from(dumped(settings), tmp_path / "out", config.schemas())
    assert fingerprint_of(again, build_graph(again)) == fingerprint_of(settings, build_graph(settings))
    assert again.nodes == settings.nodes


def test_paths_and_modules_mean_what_they_did_for_the_run(tmp_path):
    """Repaired from another directory: the job file's folder has the operator, the data path is relative."""
    (tmp_path / "here").mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "here/rows.jsonl").write_text("".join(f'{{"x": {i}}}\n' for i in range(20)))
    (tmp_path / "jobs/my_ops.py").write_text("from tests.pipeline.job_ops import Parquet, Square\n")
    (tmp_path / "jobs/mine.yaml").write_text(
        """
chunk_rows: 10
progress: none
data: {path: rows.jsonl}
nodes:
  read: {op: {_target_: operators.sources.read_prompts.ReadPrompts, data: "${data}", chunk_rows: "${chunk_rows}"}}
  square: {inputs: read, op: {_target_: my_ops.Square}}
  write: {inputs: square, op: {_target_: my_ops.Parquet}}
"""
    )

    def pipeline(folder: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pipeline", *arguments],
            cwd=tmp_path / folder,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            capture_output=True,
            text=True,
            check=False,
        )

    made = pipeline("here", "job=../jobs/mine.yaml")
    assert made.returncode == 0, made.stderr
    out = tmp_path / "here/outputs/mine"
    before = files(out)
    flip(out / "data/part-00001.parquet")
    mended = pipeline("jobs", "verify", "../here/outputs/mine", "repair=true")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert files(out) == before


def test_rows_of_the_manifest_are_those_of_the_repaired_files(out):
    flip(out / ODD)
    main(["verify", str(out), "repair=true"])
    listed = {s["path"]: s["rows"] for s in json.loads((out / "manifest.json").read_text())["shards"]}
    assert listed == {name: pq.read_metadata(out / name).num_rows for name in files(out)}
    with closing(sqlite3.connect(out / "state.sqlite")) as db:
        assert db.execute("SELECT COUNT(*) FROM attempts").fetchone() == (1,)
