"""find_files: all that lies at a path is read, refused by name, or named in a warning."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.formats.registry import ENDINGS
from operators.settings import DataSettings
from operators.sources.files import find_files
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import InputError
from tests.operators.generation.stores import Store, put

ROW = b'{"prompt": "a"}\n'
NOBODY = 65534


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def link_to_folder(path: Path) -> None:
    path.with_name("_folder").mkdir(exist_ok=True)
    path.symlink_to("_folder")


NO_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a link to nothing": (lambda path: path.symlink_to("gone.jsonl"), "a link to gone.jsonl, where no file is"),
    "a link through a file": (lambda path: path.symlink_to("a.jsonl/b"), "a link to a.jsonl/b, where no file is"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "a link to itself"),
    "a folder": (Path.mkdir, "a folder"),
    "a link to a folder": (link_to_folder, "a folder"),
    "a pipe": (os.mkfifo, "a pipe"),
    "a socket": (socket_at, "a socket"),
    "a device": (lambda path: path.symlink_to("/dev/null"), "a device"),
}
"""What may be named like a file of rows, and the words for it."""


def found(path: Path | str, **data: Any) -> tuple[list[str], list[str]]:
    """Return the names of the files at `path`, and the warnings."""
    warnings: list[str] = []
    return [file.name for file in find_files(DataSettings(path=str(path), **data), warnings.append)], warnings


@pytest.mark.parametrize("at", [".", "*.jsonl", "**/*.jsonl", "*"])
@pytest.mark.parametrize("what", NO_FILES)
def test_what_is_named_like_a_file_of_rows_and_is_none_is_refused(tmp_path: Path, what: str, at: str) -> None:
    make, says = NO_FILES[what]
    (tmp_path / "a.jsonl").write_bytes(ROW)
    make(tmp_path / "x.jsonl")
    with pytest.raises(InputError, match=rf"x\.jsonl is named like a file of rows and is {says}; fetch"):
        found(tmp_path / at)
    with pytest.raises(InputError, match=rf"x\.jsonl is named like a file of rows and is {says}; fetch"):
        found(tmp_path / "*.jsonl", format="lines")
    (tmp_path / "x.jsonl").rename(tmp_path / "_x.jsonl")
    assert found(tmp_path / at) == (["a.jsonl"], [])


@pytest.mark.parametrize("what", [what for what in NO_FILES if "folder" not in what])
def test_alone_it_is_told_what_it_is_and_not_to_be_meant(tmp_path: Path, what: str) -> None:
    make, says = NO_FILES[what]
    make(tmp_path / "x.jsonl")
    with pytest.raises(InputError, match=rf"data\.path=.*x\.jsonl is {says}; fetch") as refused:
        found(tmp_path / "x.jsonl")
    assert "did you mean" not in str(refused.value)


NAMES = st.sampled_from(["a", "_b", ".c", "README"]).flatmap(
    lambda stem: st.sampled_from(
        ["", ".jsonl", ".ndjson", ".csv", ".txt", ".md", ".jsonl.gz", ".parquet.gz", ".tmp"]
    ).map(lambda extension: stem + extension)
)


@settings(max_examples=80, deadline=None)
@given(
    entries=st.dictionaries(NAMES, st.sampled_from(["a file", *NO_FILES]), max_size=5),
    at=st.sampled_from(["d", "d/*", "d/**"]),
    wanted=st.sampled_from(["auto", "jsonl", "lines"]),
)
def test_all_that_lies_there_is_read_or_refused_or_told(entries: dict[str, str], at: str, wanted: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder, "d")
        there.mkdir()
        for name, what in entries.items():
            (there / name).write_bytes(ROW) if what == "a file" else NO_FILES[what][0](there / name)
        refused = ""
        try:
            read, warnings = found(Path(folder, at), format=wanted, empty="ok")
        except InputError as error:
            refused = str(error)
    if refused:
        assert any(f"{name} is named like" in refused for name in entries) or "several formats" in refused
        return
    beside = re.compile(r"[._]|README|.*(\.tmp|\.md)$")
    silent = {name for name in entries if beside.match(name) or (wanted == "jsonl" and re.search("csv|parquet", name))}
    told = "".join(warnings).replace("/", "")
    assert {
        name for name in entries if name not in read and not re.search(rf"[ ]{re.escape(name)}[, ]", told)
    } <= silent
    assert all(entries[name] == "a file" and not name.startswith((".", "_")) for name in read)


def test_a_folder_of_parts_that_the_pattern_matches_too_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").mkdir()
    (tmp_path / "x.jsonl/part-0.jsonl").write_bytes(ROW)
    assert found(tmp_path / "**/*.jsonl") == (["part-0.jsonl"], [])
    with pytest.raises(InputError, match="is a folder"):
        found(tmp_path / "*.jsonl")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in which this process may not do everything, also where root runs the tests."""
    folder = Path(tempfile.mkdtemp())
    (folder / "d").mkdir()
    (folder / "d/a.jsonl").write_bytes(ROW)
    folder.chmod(0o755)
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, folder)
        if os.geteuid() == 0:
            os.seteuid(NOBODY)
            undo.callback(os.seteuid, 0)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file of somebody else")
@pytest.mark.parametrize("locked", ["d/b.jsonl", "d/sub", "d"])
@pytest.mark.parametrize("at", ["d", "d/*.jsonl", "**/*.jsonl", "d/**/*.jsonl", "*/*.jsonl", "d/sub/*.jsonl"])
def test_what_may_not_be_read_is_not_taken_for_absent(place: Path, locked: str, at: str) -> None:
    os.seteuid(0)
    (place / "d/sub").mkdir()
    (place / "d/sub/c.jsonl").write_bytes(ROW)
    (place / "d/b.jsonl").write_bytes(ROW)
    (place / locked).chmod(0)
    os.seteuid(NOBODY)
    concerned = {"d/b.jsonl": "sub/" not in at, "d/sub": "**" in at or "sub" in at, "d": True}
    op = ReadPrompts(DataSettings(path=str(place / at)), 10)
    if concerned[locked]:
        with pytest.raises(InputError, match=rf"{locked}.* cannot be read: Permission denied; let this user read it"):
            op.plan()
    else:
        op.plan()


def test_what_is_passed_over_is_named_once(tmp_path: Path) -> None:
    for name in (
        "a.jsonl",
        "b.docx",
        "c.txt",
        "d.json",
        "e.jsonl.lz4",
        "f.parquet.gz",
        "g",
        ".h",
        "_i.txt",
        "j.tmp",
        "~$k.xlsx",
    ):
        (tmp_path / name).write_bytes(ROW)
    for name in ("README.txt", "readme", "LICENSE", "notes.MD"):
        (tmp_path / name).write_bytes(ROW)
    (tmp_path / "more").mkdir()
    for at in (".", "*"):
        names, (warning, beside) = found(tmp_path / at)
        assert names == ["a.jsonl"]
        assert "not read: b.docx, c.txt, e.jsonl.lz4, f.parquet.gz, g and 1 more (6 in all)" in warning
        assert "has what is not read beside other formats: d.json; data.format=json reads .json alone" in beside
    (tmp_path / "y.xlsx").write_bytes(ROW)
    names, (_, _, warning) = found(tmp_path)
    assert (names, "beside other formats: y.xlsx; data.format=xlsx reads .xlsx alone" in warning) == (["a.jsonl"], True)
    (tmp_path / "y.xlsx").unlink()
    (tmp_path / "z.csv").write_bytes(b"prompt\nx\n")
    names, (warning,) = found(tmp_path, format="jsonl")  # the other format was chosen away
    assert names == ["a.jsonl"]
    assert "z.csv" not in warning
    assert found(tmp_path / "[az].*", format="lines") == (["a.jsonl", "z.csv"], [])


@pytest.mark.parametrize("folder", ["b[2]", "a[!x]/b", "[c]*", "d[[]"])
@pytest.mark.parametrize("remote", [False, True])
def test_a_folder_that_is_there_as_it_is_written_is_no_pattern(tmp_path: Path, folder: str, remote: bool) -> None:
    Store.clear()
    for name in (f"{folder}/p.jsonl", "b2/q.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(ROW)
        put(f"x/{name}", ROW)
    at = "store://x" if remote else str(tmp_path)
    assert found(f"{at}/{folder}/*.jsonl") == (["p.jsonl"], [])
    with pytest.raises(InputError, match=r"does not exist; the directory .* has p\.jsonl"):
        found(f"{at}/{folder}/r.jsonl")
    assert found(f"{at}/b[12]/*.jsonl") == (["q.jsonl"], [])


def test_every_extension_is_found_in_a_folder(tmp_path: Path) -> None:
    for extension in ENDINGS:
        (tmp_path / extension[1:]).mkdir()
        (tmp_path / extension[1:] / f"a{extension.upper()}").write_bytes(ROW)
        assert found(tmp_path / extension[1:]) == ([f"a{extension.upper()}"], [])
