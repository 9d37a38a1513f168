"""Folders of images: a row for each, and what lies beside them."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from operators.formats.input_file import Stamp, Storage
from operators.formats.registry import ENDINGS
from operators.images.read import FORMATS
from operators.settings import DataSettings
from operators.sources.files import find_files
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import ConfigError, InputError
from pipeline.api.protocols import ListInbox
from pipeline.api.records import Batch, ChunkEnd
from tests.operators.sources.reading import read

NAMES = ("a.JPG", "b.png", "deep/c.webp", "k=1/d.tiff", "k=2/e.gif")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def paths(path: object, **data: object) -> list[str]:
    found = read(path, 2, **data)  # type: ignore[arg-type]
    assert [Path(row["image"]["path"]).name for row in found.values] == [Path(r["path"]).name for r in found.values]
    assert all(row["image"]["bytes"] is None and Path(row["image"]["path"]).is_file() for row in found.values)
    return [row["path"] for row in found.values]


def test_each_image_is_a_row_with_its_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths(folder) == ["a.JPG", "b.png"]
    assert paths(f"{folder}/**/*.*") == [*NAMES]
    assert paths([str(folder / "b.png"), str(folder / "deep/*.webp")]) == ["b.png", "c.webp"]
    monkeypatch.chdir(folder)
    assert [row["image"]["path"] for row in read("deep").values] == [str(folder / "deep/c.webp")]
    with pytest.raises(ConfigError, match=r"means .*b.png twice"):
        read([str(folder), str(folder / "b.png")])
    fsspec.filesystem("memory").pipe("/images/a.png", b"x")
    with pytest.raises(InputError, match="images are read from folders of this machine"):
        read("memory://images/a.png")


def test_a_name_that_is_not_utf_8_costs_its_row(folder: Path) -> None:
    (folder / os.fsdecode(b"a\xff.png")).write_bytes(b"")
    found = read(folder, 2)
    assert [row["path"] for row in found.values] == ["a.JPG", "b.png"]
    assert found.rejects[1].reason == rf"the name of {folder}/a\xff.png is not UTF-8; rename it"
    source = ReadPrompts(DataSettings(path=f"{folder}/a?.png"), 2)
    source.plan()
    json.dumps(source.fingerprint(), ensure_ascii=False).encode()  # as the state keeps it


def test_folders_key_value_are_columns(folder: Path) -> None:
    assert [(row["path"], row["k"]) for row in read(f"{folder}/k=*/*", partitions=True).values] == [
        ("k=1/d.tiff", 1),
        ("k=2/e.gif", 2),
    ]


def test_rows_of_other_formats_are_read_rather_than_the_images_beside_them(folder: Path) -> None:
    """As `datasets` lays an imagefolder out: metadata.csv names the images."""
    (folder / "metadata.csv").write_text("file_name,label\na.JPG,1\n")
    assert read(folder).values == [{"file_name": "a.JPG", "label": 1}]
    assert paths(folder, format="images") == ["a.JPG", "b.png"]
    (folder / "metadata.csv").rename(folder / "metadata.json")
    (folder / "metadata.json").write_text('[{"file_name": "a.JPG"}]')
    assert read(folder).values == [{"file_name": "a.JPG"}]


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.jsonl.gz"])
def test_a_table_is_no_image(folder: Path, name: str) -> None:
    """Where images are read it is left out beside them, which is told, and refused alone, with what reads it."""
    (folder / name).write_text("file_name\na.JPG\n")
    assert paths(f"{folder}/*.*", format="images") == ["a.JPG", "b.png"]
    told: list[str] = []
    find_files(DataSettings(path=f"{folder}/*.*", format="images"), told.append)
    assert f"has what is not read: {name} (1 in all)" in told[-1]
    for path in (folder / name, f"{folder}/rows.*"):
        with pytest.raises(InputError, match=r"rows\..* data.format=auto reads its rows, and data.image_column="):
            read(path, format="images")


def test_pdfs_are_told_what_reads_their_pages(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.7\n")
    for path in (tmp_path, tmp_path / "a.pdf", f"{tmp_path}/*.pdf"):
        with pytest.raises(InputError, match=r"operators.pages.Pages makes a row of each page of .*data.format=images"):
            read(path)
    assert paths(f"{tmp_path}/*.pdf", format="images") == ["a.pdf"]


@pytest.mark.parametrize("odd", ["link", "folder"])
def test_what_is_named_like_an_image_and_is_none_matters_where_images_are_read(folder: Path, odd: str) -> None:
    name = folder / "logo.png"
    name.symlink_to("gone.png") if odd == "link" else name.mkdir()
    (folder / "metadata.csv").write_text("file_name\na.JPG\n")
    assert read(folder).values == [{"file_name": "a.JPG"}]
    for data in ({"path": folder, "format": "images"}, {"path": f"{folder}/*.[jp][pn]g"}):
        with pytest.raises(InputError, match=r"logo.png is named like a file of rows and is a (link|folder)"):
            read(**data)


def test_a_change_of_one_image_is_another_input(folder: Path) -> None:
    def planned() -> object:
        source = ReadPrompts(DataSettings(path=str(folder)), 2)
        source.plan()
        return source.fingerprint()

    before = planned()
    os.utime(folder / "a.JPG", (0, 0))
    assert planned() == before
    (folder / "a.JPG").write_bytes(b"A.jpg")
    assert planned() != before


def test_each_image_is_looked_at_once_at_the_end_of_its_chunk_and_named_if_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"k={i % 2}/{i // 2:02}.png" for i in range(26)]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x")
    seen: list[str] = []
    stamp = Storage.stamp

    def counted(storage: Storage, path: str) -> Stamp:
        seen.append(path)
        return stamp(storage, path)

    monkeypatch.setattr(Storage, "stamp", counted)

    def chunks(change: Path | None = None, limit: int | None = None) -> list[int]:
        """Run in chunks of 5 and return those that ended; a file changes once the first has."""
        source = ReadPrompts(DataSettings(path=f"{tmp_path}/k=*/*", partitions=True, limit=limit), 5)
        source.plan()
        seen.clear()
        ended = []
        why = pytest.raises(InputError, match=rf"^{change} was written to while .* \(1 bytes then, 6 now\)")
        with why if change is not None else nullcontext():
            for item in source.run(ListInbox()):
                ended += [item.chunk] if isinstance(item, ChunkEnd) else []
                if change is not None and ended == [0]:
                    change.write_bytes(b"longer")
        if change is not None:
            change.write_bytes(b"x")
        return ended

    order = sorted(map(str, files))
    assert chunks() == [*range(6)]
    assert seen == order, "k=0 and k=1 are folders of 13: a chunk has rows of both"
    assert chunks(limit=17) == [*range(4)]
    assert seen == order[:17]
    for at, ended in ((5, [0]), (12, [0, 1]), (13, [0, 1]), (14, [0, 1]), (25, [*range(5)])):
        assert chunks(Path(order[at])) == ended, at


def test_every_ending_of_an_image_is_that_of_a_format_that_is_decoded() -> None:
    own = {"jpg": "JPEG", "jpeg": "JPEG", "tif": "TIFF", "tiff": "TIFF"}
    endings = [ending[1:] for ending, name in ENDINGS.items() if name == "images"]
    assert {own.get(ending, ending.upper()) for ending in endings} == set(FORMATS)


def test_rows_with_bytes_are_read_few_at_a_time(tmp_path: Path) -> None:
    rows = [{"image": os.urandom(1 << 20)} for _ in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    source = ReadPrompts(DataSettings(path=str(tmp_path / "a.parquet")), 1000)
    source.plan()
    batches = [item.data.nbytes for item in source.run(ListInbox()) if isinstance(item, Batch)]
    assert max(batches) <= 40 << 20
    assert sum(batches) >= 100 << 20
