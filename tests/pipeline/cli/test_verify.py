"""`verify` finds every kind of damage and names it, a resume what it can see cheaply; what is mended is as before."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.api.errors import DamagedError, ExitCode
from pipeline.cli.main import main
from tests.pipeline.damage import (
    LAST,
    ODD,
    REJECT,
    cut,
    empty,
    files,
    flip,
    garbage,
    inodes,
    job,
    misname,
    misname_index,
    run,
)
from tests.sets import often, often_cases


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
    ("state.sqlite", misname, "is damaged"),
    ("state.sqlite", misname_index, "is damaged"),
    ("state.sqlite", empty, "is empty"),
    ("state.sqlite", Path.unlink, "is missing"),
]


OFTEN = (
    "has other bytes than were written",
    "has 0 bytes",
    "cannot be read",
    "is not what the run wrote",
    "is damaged: file is not a database",
)


@pytest.mark.parametrize(
    ("name", "damage", "what"), often_cases(DAMAGES, *OFTEN), ids=lambda x: getattr(x, "__name__", str(x))
)
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


@pytest.mark.parametrize("damage", [garbage, misname, misname_index])
def test_a_damaged_state_is_refused_with_the_remedy(out, damage):
    damage(out / "state.sqlite")
    with pytest.raises(DamagedError, match=r"state\.sqlite (is damaged: |cannot be read: ).*verify .*repair=true"):
        run(job(out))


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


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["out", "repair=maybe"], ["out", "mend=true"]])
def test_arguments_that_make_no_sense(arguments, capsys):
    assert main(["verify", *arguments]) == ExitCode.CONFIG
    assert "repair=true" in capsys.readouterr().err


def test_a_directory_of_something_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main(["verify", str(tmp_path), "repair=true"]) == ExitCode.CONFIG
    assert "is not a run directory" in capsys.readouterr().err
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
@pytest.mark.parametrize("damage", often([Path.unlink, cut], cut))
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


@pytest.mark.parametrize(
    ("damage", "says"), often_cases([(empty, "is empty, but there are results"), (Path.unlink, "is gone")], empty)
)
def test_results_without_a_state_are_never_begun_over_in_silence(out, damage, says):
    before = files(out)
    damage(out / "state.sqlite")
    with pytest.raises(Exception, match=rf"{says}.*verify .*repair=true"):
        run(job(out))
    assert files(out) == before
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    assert files(out) == before
    assert run(job(out)) is ExitCode.DONE
