"""The forms in which rows have images, and the places where none is read."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from operators.images.forms import ImageForms, holds_images
from operators.images.read import BadImage

STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
PNG = b"\x89PNG"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`in/a.png` and `in/deep/b.png` beside `out/c.png`, with links from `in` to what is in and out."""
    for name in ("in/a.png", "in/deep/b.png", "out/c.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(PNG)
    (tmp_path / "in/to_b.png").symlink_to("deep/b.png")
    (tmp_path / "in/to_c.png").symlink_to("../out/c.png")
    (tmp_path / "in/all").symlink_to("../out")
    os.mkfifo(tmp_path / "in/pipe")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "in"


def test_paths_lead_below_the_folder_of_the_input_or_the_root(folder: Path) -> None:
    """As they are written, from there or from where the run was started, and through links that stay inside."""
    forms = ImageForms(None, [Path("in")])
    names = {"a.png": "a.png", "in/a.png": "a.png", "deep/../a.png": "a.png", "to_b.png": "deep/b.png"}
    names |= {str(folder / "a.png"): "a.png", (folder / "deep/b.png").as_uri(): "deep/b.png"}
    for text, leads_to in names.items():
        assert forms.images(text) == [{"bytes": None, "path": str(folder / leads_to)}], text
    assert ImageForms("out", [Path("in")]).images("to_c.png")[0]["path"] == str(folder.parent / "out/c.png")


def test_a_path_that_is_another_file_in_another_folder_of_the_input_costs_its_row(folder: Path) -> None:
    """As 1.jpg of train/metadata.csv and of val/metadata.csv. One file by two ways is one."""
    (folder / "deep/a.png").write_bytes(b"another")
    with pytest.raises(
        BadImage, match=r"'a.png' is .*/in/a.png and .*/in/deep/a.png; write absolute paths, or paths b"
    ):
        ImageForms(None, [folder, folder / "deep"]).images("a.png")
    assert ImageForms("in/deep", [folder, folder / "deep"]).images("a.png")[0]["path"] == str(folder / "deep/a.png")
    (folder / "deep/a.png").unlink()
    (folder / "deep/a.png").symlink_to("../a.png")
    assert ImageForms(None, [folder, folder / "deep"]).images("a.png")[0]["path"] == str(folder / "a.png")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("to_c.png", r"leads to .*/out/c.png, and images are read below .*/in; data.image_root=.*/out allows it"),
        ("all/c.png", "leads to"),
        ("../out/c.png", "leads to"),
        ("/etc/passwd", "'/etc/passwd' leads to /etc/passwd, and images are read below"),
        ("file:///etc/passwd", "leads to"),
        ("none.png", r"'none.png' is not there \(looked below .*/in\); data.image_root="),
        ("deep", "is a folder, and no image"),
        ("pipe", "is no regular file, and no image"),
        ("x" * 5000, "a text of 5,000 characters is no path; where it is base64"),
        (base64.b64encode(bytes(range(150))).decode(), "a text of 200 characters is no path; where it is base64"),
        ("a\0.png", "is no path"),
        ("s3://bucket/a.png", "s3://bucket/a.png is no place that images are read from"),
        (
            "https://x.org/a.png",
            r"an image is at https://x.org, from where none are fetched; data.image_domains=\[x.org\]",
        ),
        ("data:video/mp4;base64,AA==", "of the type video/mp4; videos are not read"),
        ("data:image/png;base64,A", "is no base64"),
        ("data:image/png;base64", "has no comma"),
        ([3], "a number is no image"),
        ([["a.png"]], "a list is no image"),
        (
            {"bytes": [137, 80], "path": "a.png"},
            "the `bytes` of an image are a list; write data:image/jpeg;base64, and",
        ),
        ({"bytes": "iVBO", "path": "a.png"}, "the `bytes` of an image are a text"),
    ],
)
def test_what_leads_elsewhere_costs_its_row(folder: Path, text: Any, says: str) -> None:
    with pytest.raises(BadImage, match=says):
        ImageForms(None, [folder]).images(text)


def test_bytes_structs_lists_and_what_is_empty(folder: Path) -> None:
    forms = ImageForms(None, [folder], ["x.org", "x.org:8000"])
    here = {"bytes": None, "path": str(folder / "a.png")}
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    alone: dict[Any, Any] = {PNG: {"bytes": PNG, "path": None}, url: {"bytes": PNG, "path": None}, "a.png": here}
    alone |= {name: {"url": name} for name in ("https://x.org/a", "http://x.org:8000/b")}
    for value, image in alone.items():
        assert forms.images(value) == [image]
    assert forms.images([*alone, None, ""]) == [*alone.values()]
    assert forms.images({"bytes": PNG, "path": "/gone.png"}) == [{"bytes": PNG, "path": "/gone.png"}]
    assert forms.images({"bytes": None, "path": "a.png"}) == forms.images({"path": "a.png"}) == [here]
    for nothing in (None, "", b"", [], [None], {"bytes": None, "path": None}):
        assert forms.images(nothing) == []


def test_types_of_columns_that_can_hold_images() -> None:
    for kind in (pa.string(), pa.binary(), STRUCT, pa.struct([("path", pa.string())]), pa.null()):
        assert holds_images(kind)
        assert holds_images(pa.list_(kind))
        assert not holds_images(pa.list_(pa.list_(kind)))
    odd = (pa.struct([("bytes", kind), ("path", pa.string())]) for kind in (pa.string(), pa.list_(pa.int64())))
    for kind in (pa.int64(), pa.struct([("x", pa.string())]), pa.map_(pa.string(), pa.binary()), *odd):
        assert not holds_images(kind)
