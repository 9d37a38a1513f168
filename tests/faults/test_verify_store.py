"""A repair decodes nothing that the stored completions have, on whole jobs with the model that makes up its tokens."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.system.digests import row_digest
from tests.pipeline.squares import files
from tests.sets import often

SHARD = "data/part-00001.parquet"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with rows; the results of a run over them are in `whole`, and are put into `out` for each test."""
    folder: Path = tmp_path_factory.mktemp("place")
    rows = [json.dumps({"prompt": f"prompt number {i}"}) for i in range(40)]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    assert run(folder) == ExitCode.DONE
    shutil.copytree(folder / "out", folder / "whole")
    return folder


@pytest.fixture
def out(place: Path) -> Path:
    shutil.rmtree(place / "out")
    shutil.copytree(place / "whole", place / "out")
    return place / "out"


def run(place: Path, *more: str) -> int:
    data, out = f"data.path={place / 'rows.jsonl'}", f"output_dir={place / 'out'}"
    settings = ("sampling.max_tokens=16", "sampling.temperature=0.7", "chunk_rows=10", "progress=none")
    return main(["job=generate", "model=fake", data, out, *settings, *more])


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 400] = b"\xff" * 400
    path.write_bytes(content)


def edit_store(out: Path, *, sealed: bool = True) -> None:
    with closing(sqlite3.connect(out / "completions.sqlite")) as db:
        db.execute("UPDATE completions SET text = 'from the store'")
        for seal, *values in db.execute("SELECT * FROM sealed_completions").fetchall() if sealed else ():
            db.execute("UPDATE completions SET seal = ? WHERE seal = ?", (row_digest(values), seal))
        db.commit()


def test_the_rows_of_a_damaged_chunk_come_from_the_store(out, capsys):
    """Seen by what happens when the store says something else: the bytes differ and are not taken."""
    before = files(out)
    spoil(out / SHARD)
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    assert files(out) == before
    edit_store(out)
    spoil(out / SHARD)
    spoilt = files(out)
    assert main(["verify", str(out), "repair=true"]) == ExitCode.FAILED
    assert "have other bytes than before" in capsys.readouterr().err
    assert files(out) == spoilt


@pytest.mark.parametrize("damage", often([spoil, Path.unlink], Path.unlink))
def test_a_lost_state_is_begun_anew_from_the_store(out, damage: Callable[[Path], None]):
    before = files(out)
    manifest = json.loads((out / "manifest.json").read_text())
    damage(out / "state.sqlite")
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    assert files(out) == before
    assert json.loads((out / "manifest.json").read_text()) == manifest
    (out / "state.sqlite").unlink()
    edit_store(out)
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    assert files(out) != before


def test_a_damaged_store_is_put_aside_and_committed_rows_lose_nothing(out):
    before = files(out)
    with (out / "completions.sqlite").open("r+b") as file:
        file.truncate(5000)
    assert main(["verify", str(out)]) == ExitCode.FAILED
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    assert (out / "completions.sqlite.damaged").exists()
    assert not (out / "completions.sqlite").exists()
    assert files(out) == before
    assert run(out.parent) == ExitCode.DONE


@pytest.mark.parametrize("another", often([False, True], False))
def test_changed_texts_are_made_again_and_removed_by_a_repair(out, tmp_path, capsys, another):
    """Of the run's own store and of one that it names."""
    more = [f"store.path={tmp_path / 'shared.sqlite'}"] if another else []
    if another:
        assert run(out.parent, "overwrite=true", *more) == ExitCode.DONE
        (tmp_path / "shared.sqlite").replace(out / "completions.sqlite")  # to edit it
    before = files(out)
    edit_store(out, sealed=False)
    if another:
        (out / "completions.sqlite").replace(tmp_path / "shared.sqlite")
    name = str(tmp_path / "shared.sqlite") if another else "completions.sqlite"
    assert main(["verify", str(out)]) == ExitCode.FAILED
    assert f"damaged  {name} has 40 rows with other values than were written" in capsys.readouterr().out
    assert run(out.parent, "overwrite=true", *more) == ExitCode.DONE
    assert files(out) == before
    said = capsys.readouterr()
    assert "stored completions have other values than were written" in said.out + said.err
    assert main(["verify", str(out)]) == ExitCode.DONE  # the rows that were made again are stored well
    with closing(sqlite3.connect(out / name)) as db:
        db.execute("UPDATE completions SET least = 99 WHERE text = (SELECT MAX(text) FROM completions)")
        db.commit()
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    assert files(out) == before
    with closing(sqlite3.connect(out / name)) as db:
        assert db.execute("SELECT COUNT(*) FROM completions").fetchone()[0] < 40


def test_with_store_and_chunk_damaged_the_chunk_is_decoded_again(out):
    before = files(out)
    (out / "completions.sqlite").write_bytes(b"not a database" * 500)
    (out / SHARD).unlink()
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    assert files(out) == before
    with closing(sqlite3.connect(out / "completions.sqlite")) as db:
        assert db.execute("SELECT COUNT(*) FROM completions").fetchone() == (10,)


def test_a_damaged_store_is_named_with_the_remedy_when_a_run_needs_it(out, capsys):
    (out / "completions.sqlite").write_bytes(b"not a database" * 500)
    assert run(out.parent, "overwrite=true") == ExitCode.CONFIG
    shown = capsys.readouterr().err
    assert "completions.sqlite cannot be used: file is not a database; name another with store.path=" in shown
