"""Images in rows of a Python program: what a model is given has the pixels that the program has."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow.parquet as pq
import pytest
from PIL import Image

from operators.images.forms import ImageForms
from operators.images.read import read_image
from pipeline import run
from pipeline.api.errors import ConfigError
from pipeline.python import rows as rows_of
from pipeline.python.rows import batches_of, write_rows
from tests.operators.images.files import MOST, encoded, pixels

PIXELS = pixels(24, 16)
TURNED = 6
"""The value of EXIF of a photo whose top is at the right."""


def turned() -> Image.Image:
    exif = Image.Exif()
    exif[0x0112] = TURNED
    file = io.BytesIO(encoded(PIXELS, "PNG", exif=exif))
    return Image.open(file)


def read(rows: Any, path: Path, **how: Any) -> list[list[np.ndarray]]:
    """The pixels of the images of each row, as Render and the model's node find them."""
    write_rows(rows, path / "rows.parquet", **how)
    column = pq.read_table(path / "rows.parquet")["image"].to_pylist()
    return [[read_image(image, MOST) for image in ImageForms(None, []).images(value)] for value in column]


SEEN = {
    "RGB": PIXELS,
    "L": np.repeat(PIXELS[:, :, :1], 3, axis=2),
    "RGBA": np.asarray(Image.fromarray(PIXELS)),
    "P": np.asarray(Image.fromarray(PIXELS).convert("P").convert("RGB")),
    "CMYK": np.asarray(Image.fromarray(PIXELS).convert("CMYK").convert("RGB")),
    "1": np.asarray(Image.fromarray(PIXELS).convert("1").convert("RGB")),
}


@pytest.mark.parametrize("mode", SEEN)
def test_images_of_pillow_have_their_pixels(tmp_path, mode):
    image = Image.fromarray(PIXELS[:, :, 0]) if mode == "L" else Image.fromarray(PIXELS).convert(mode)
    ((found,),) = read([{"image": image}], tmp_path)
    assert np.array_equal(found, SEEN[mode])


def test_they_may_come_in_lists_in_frames_and_turned(tmp_path):
    image = Image.fromarray(PIXELS)
    rows = [{"image": [image, image]}, {"image": None}, {"image": [image]}]
    assert [len(images) for images in read(rows, tmp_path)] == [2, 0, 1]
    assert len(read(pd.DataFrame({"image": pd.Series([image, None], dtype=object)}), tmp_path)[0]) == 1
    of_hub = datasets.Dataset.from_dict({"image": [image]}).cast_column("image", datasets.Image())
    for rows_of_hub in (of_hub, iter(of_hub)):
        ((found,),) = read(rows_of_hub, tmp_path)
        assert np.array_equal(found, PIXELS)
    ((upright,),) = read([{"image": turned()}], tmp_path)
    assert np.array_equal(upright, np.rot90(PIXELS, -1))


def test_bytes_and_parts_of_messages(tmp_path):
    content = encoded(PIXELS, "PNG")
    for image in (content, {"bytes": content, "path": "a.png"}, [content]):
        assert np.array_equal(read([{"image": image}], tmp_path)[0][0], PIXELS)
    message = {"role": "user", "content": [{"type": "image", "image": Image.fromarray(PIXELS)}]}
    write_rows([{"messages": [message]}], tmp_path / "rows.parquet", as_json=["messages"])
    (text,) = pq.read_table(tmp_path / "rows.parquet")["messages"].to_pylist()
    url = json.loads(text)[0]["content"][0]["image"]
    assert np.array_equal(read_image({"bytes": base64.b64decode(url.partition(",")[2])}, MOST), PIXELS)


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (PIXELS, r"an array of pixels \(16, 24, 3\); give an image as PIL.Image.fromarray"),
        (
            Image.open(io.BytesIO(encoded(PIXELS, "PNG")[:-200])),
            "an image .*24 x 16, RGB.* cannot be written as a file",
        ),
    ],
)
def test_what_is_no_image_of_theirs_is_refused_by_name(tmp_path, image, says):
    with pytest.raises(ConfigError, match=says):
        write_rows([{"image": image}], tmp_path / "rows.parquet")


def test_rows_with_large_images_are_few_at_a_time(monkeypatch):
    monkeypatch.setattr(rows_of, "BATCH_BYTES", 1000)
    of_images = batches_of({"image": b"x" * 400} for _ in range(7))
    assert [table.num_rows for table in of_images] == [3, 3, 1]
    assert [table.num_rows for table in batches_of({"prompt": "x" * 4000} for _ in range(7))] == [7]


def test_a_job_answers_them_and_the_same_rows_find_it_finished(tmp_path):
    image = Image.fromarray(pixels(32, 32))
    rows = [{"prompt": "?", "image": image}, {"prompt": "?", "image": Image.fromarray(pixels(32, 32, 1))}]
    given = {"model.mmproj": "eyes", "data.image_column": "image", "sampling.max_tokens": 20}
    for _ in range(2):
        result = run(
            "generate", given, rows=rows, model="fake", directory=tmp_path / "out", progress="none", report=False
        )
        answers = result.rows().collect()
        assert answers["completion"].n_unique() == 2
