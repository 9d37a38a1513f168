"""Images of sample rows in the report: small ones, and in no other file of a run but its data."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from operators.images.columns import IMAGE
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.results.reader import Results, read_results
from pipeline.results.report.page import page
from tests.operators.images.files import encoded, pixels, png
from tests.pipeline.pages import Page

PICTURE = encoded(pixels(400, 100), "PNG")
BOMB = png(20_000, 20_000, 8, 2)
HOSTILE = {"html": b"<html><script>alert(1)</script>", "bomb": BOMB, "cut off": PICTURE[:-99], "nothing": b""}


def data_url(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def result_of(folder: Path, rows: Sequence[dict[str, Any]], schema: pa.Schema, **config: Any) -> Results:
    """The results of a run that has written `rows`."""
    (folder / "data").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema), folder / "data/part-00000.parquet")
    shard = {"path": "data/part-00000.parquet", "chunk": 0, "rows": len(rows)}
    return Results(folder, {"shards": [shard]}, {"data": {"path": str(folder), **config.pop("data", {})}, **config})


def shown(results: Results) -> list[tuple[str, np.ndarray]]:
    """The images of a page, each with the name of its column."""
    text = page(results)
    assert page(results) == text
    found = Page(text)
    assert "script" not in found.tags
    assert all(url.startswith("data:image/jpeg;base64,") for url in found.values("src"))
    files = [base64.b64decode(url.partition(",")[2]) for url in found.values("src")]
    assert all(len(file) < 32_000 for file in files)
    return list(zip(found.values("alt"), (np.asarray(Image.open(io.BytesIO(file))) for file in files), strict=True))


FORMS: dict[str, tuple[Any, pa.DataType, dict[str, Any]]] = {
    "struct": ({"bytes": PICTURE, "path": "a.png"}, IMAGE, {}),
    "structs": ([{"bytes": PICTURE, "path": None}], pa.list_(IMAGE), {}),
    "file": ({"bytes": None, "path": "a.png"}, IMAGE, {}),
    "path": ("a.png", pa.string(), {"data": {"image_column": "seen"}}),
    "bytes": (PICTURE, pa.binary(), {"data": {"image_column": "seen"}}),
    "url": (data_url(PICTURE), pa.string(), {"nodes": {"render": {"op": {"images": ["seen"]}}}}),
}


@pytest.mark.parametrize("form", FORMS)
def test_images_of_sample_rows_are_shown_small(tmp_path, form):
    value, kind, config = FORMS[form]
    (tmp_path / "a.png").write_bytes(PICTURE)
    results = result_of(
        tmp_path, [{"row": 0, "seen": value}], pa.schema([("row", pa.int64()), ("seen", kind)]), **config
    )
    ((name, thumbnail),) = shown(results)
    assert (name, thumbnail.shape) == ("seen", (40, 160, 3))
    small = np.asarray(Image.open(io.BytesIO(PICTURE)).resize((160, 40))).astype(int)
    assert np.abs(thumbnail.astype(int) - small).mean() < 8
    off = Results(tmp_path, results.manifest, {**results.config, "report": {"images": False}})
    assert shown(off) == []
    (tmp_path / "a.png").unlink()
    assert len(shown(results)) == (form not in ("file", "path"))
    assert base64.b64encode(PICTURE)[40:80].decode() not in page(off)


def test_what_cannot_be_read_is_text_and_takes_no_memory(tmp_path):
    files = {**HOSTILE, "good": PICTURE}
    rows = [{"row": i, "seen": {"bytes": file, "path": name}} for i, (name, file) in enumerate(files.items())]
    rows[1:1] = [{"row": 9, "seen": {"bytes": None, "path": "/etc/passwd"}}]
    results = result_of(tmp_path, rows[-5:], pa.schema([("row", pa.int64()), ("seen", IMAGE)]))
    assert [name for name, _ in shown(results)] == ["seen"]
    assert all(f'"path": "{name}"' in "".join(Page(page(results)).text) for name in files if name != "html")


def test_of_many_images_of_a_row_the_first_are_shown(tmp_path):
    seen = [{"bytes": encoded(pixels(20 + i, 10), "PNG"), "path": None} for i in range(9)]
    results = result_of(
        tmp_path, [{"row": 0, "seen": seen}], pa.schema([("row", pa.int64()), ("seen", pa.list_(IMAGE))])
    )
    assert [thumbnail.shape[1] for _, thumbnail in shown(results)] == [20, 21, 22, 23]


def test_no_file_but_data_holds_an_image(tmp_path):
    """Of rows that are answered and that are rejected, wherever; rejects hold the texts of a row as they were."""
    small = encoded(pixels(40, 20), "PNG")
    files = {**HOSTILE, "good": small}
    images = pa.array([{"bytes": file, "path": name} for name, file in files.items()], IMAGE)
    pq.write_table(pa.table({"prompt": ["?"] * len(files), "image": images}), tmp_path / "rows.parquet")
    bare = base64.b64encode(small).decode()
    texts = [bare, data_url(small), data_url(b"<html>" + small), f"x{data_url(small)}"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": "?", "image": text}) + "\n" for text in texts))
    for name, rejected in (("rows.parquet", 4), ("rows.jsonl", 3)):
        out = tmp_path / f"out-{name}"
        eyes = ("job=generate", "model=fake", "model.mmproj=eyes", "data.image_column=image", "progress=json")
        given = (f"data.path={tmp_path / name}", f"output_dir={out}", "sampling.max_tokens=4", "max_error_rate=1")
        assert main([*eyes, *given]) == ExitCode.DONE
        assert read_results(out).counts["error_rejects"] == rejected
        held = {path: _content(path) for path in out.rglob("*") if path.is_file() and path.parent.name != "data"}
        assert {"run.log", "state.sqlite", "status.json", "manifest.json"} <= {path.name for path in held}
        found = {
            path.parent.name
            for path, content in held.items()
            if small[60:84].decode("latin-1") in content or bare[80:112] in content
        }
        assert found == ({"rejects"} if name == "rows.jsonl" else set())


def _content(path: Path) -> str:
    """What a file holds, as text, where each byte is a character."""
    whole = path.read_bytes()
    return repr(pl.read_parquet(path).to_dicts()) if path.suffix == ".parquet" else whole.decode("latin-1")
