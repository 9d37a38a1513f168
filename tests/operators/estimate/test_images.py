"""What a dry run says of jobs with images: images that are damaged, the time of reading, and memory."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from PIL import Image

from operators.engine.backend.fake import FakeModel
from operators.engine.backend.fake_vision import WIDTH, FakeVision
from operators.engine.backend.text_columns import TextColumns
from operators.engine.images.columns import ImagePrompts
from operators.engine.images.encoded import EncodedImages
from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence
from operators.estimate.images import largest_image_first, with_images, with_keys
from operators.estimate.trial import MOST_ROWS
from operators.generation.requests import BatchRow
from operators.generation.store_lookup import CompletionKeys
from operators.images.columns import IMAGE_MARK, PROMPT_IMAGES
from operators.images.read import read_image
from operators.rows.token_lists import PROMPT_IDS
from operators.settings.model import TEXT
from pipeline.api.errors import ExitCode
from pipeline.api.forecast import Forecast, Range, Task
from pipeline.api.records import Batch
from pipeline.cli.main import main
from tests.operators.images.files import encoded, pixels


def image(number: int, width: int, height: int) -> dict[str, Any]:
    return {"bytes": encoded(pixels(width, height, number), "PNG"), "path": None}


def rows_with(
    images: list[list[dict[str, Any]] | None], memory: int, *, sizes_alone: bool = True
) -> tuple[EncodedImages, Batch, list[Sequence]]:
    """The rows of a prompt with each of `images`, as a dry run has them, or (not `sizes_alone`) a run."""
    vision = FakeVision("eyes")
    texts = [IMAGE_MARK * len(each or ()) + "What?" for each in images]
    data = pa.record_batch([pa.array(texts), pa.array(images, PROMPT_IMAGES.type)], ["prompt_text", PROMPT_IMAGES.name])
    prompts = ImagePrompts(TextColumns(FakeModel(), TEXT), vision, 0, sizes_alone=sizes_alone)
    ids, placed, _ = prompts.tokenize(data, "prompt_text")
    batch = Batch(0, pa.record_batch([ids, placed], [PROMPT_IDS.name, PROMPT_IMAGES.name]))
    made = EncodedImages(FakeModel(vision=vision), memory)
    params = SamplingParams()
    return (
        made,
        batch,
        [
            Sequence(i, prompt, params, seed=i, max_tokens=2, images=spans)
            for i, (prompt, spans) in enumerate(made.prompts(batch.data))
        ],
    )


ONE, LARGE = image(1, 32, 32), image(2, 64, 96)


def test_each_image_of_each_row_is_read_and_what_is_made_of_each_is_kept_once_within_bounds(tmp_path):
    cells = 4 + 24
    for most, kept in ((1 << 20, 50 / 4 * cells * WIDTH * 4), (999, 999)):
        images, batch, rows = rows_with([[ONE], [ONE, LARGE], None, [LARGE]], most)
        images.reads, images.read_s = 4, 2.0
        task = Task(Range.exact(100), False, 1.0, tmp_path)
        found = with_images(Forecast(task.rows), images, [batch], rows, task, Range.exact(50))
        assert found.read_s.likely == pytest.approx(100 * 0.5)
        assert found.memory == Range(0, kept + 16 * 64 * 96, kept + 32 * 64 * 96)
        assert with_images(found, images, [batch], rows, replace(task, whole=True), Range.exact(50)).memory.low == kept


def test_a_trial_begins_with_the_largest_image():
    rows = rows_with([None, [ONE], [ONE, LARGE], [ONE]], 0)[2]
    assert [row.handle for row in largest_image_first(rows)] == [2, 0, 1, 3]
    texts = [row for row in rows if not row.images]
    assert largest_image_first(texts) == texts
    assert largest_image_first([]) == []


def test_in_the_store_images_count_by_their_pixels_and_nowhere_else():
    images, batch, made = rows_with([[ONE], None, [ONE, LARGE]], 0)
    rows = [replace(row, handle=BatchRow(batch, i, i)) for i, row in enumerate(made)]
    decoded = rows_with([[ONE], None, [ONE, LARGE]], 0, sizes_alone=False)[2]
    keys = CompletionKeys("one model")
    keys.give(decoded)
    assert with_keys(rows, keys, images) == rows
    assert [row.key for row in rows] == [row.key for row in decoded]
    assert all(row.prompt is own.prompt for row, own in zip(rows, made, strict=True))
    assert images.reads == 2


def test_images_that_are_damaged_are_told_and_cost_nothing(monkeypatch, tmp_path, capsys):
    """Their headers are whole, so that it shows where they are decoded; their share is that of all rows."""

    def slowly(image: dict[str, Any], limit: int) -> Any:
        time.sleep(0.01)
        return read_image(image, limit)

    monkeypatch.setattr("operators.engine.images.encoded.read_image", slowly)
    photo = encoded(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8), "JPEG")
    for number in range(40):
        content = photo if number % 4 else photo[: len(photo) // 2]
        (tmp_path / f"{number:02d}.jpg").write_bytes(content + bytes([number]))
    job = ["job=generate", f"data.path={tmp_path}", "data.image_column=image", "data.prompt_template=What?"]
    job += ["model=fake", "model.mmproj=eyes", "sampling.max_tokens=5", "sampling.ignore_eos=true", "dry_run=true"]
    assert main([*job, f"output_dir={tmp_path / 'out'}", "progress=none"]) == ExitCode.DONE
    text = capsys.readouterr().out
    assert re.search(r"^generate: 10 of 40 rows of the sample are rejected: .* damaged or cut off", text, re.MULTILINE)
    assert re.search(r"^  tokens out +150$", text, re.MULTILINE)
    reading = re.search(r"to encode images \(to read them, beside the model: ([\d.]+) s\)", text)
    assert reading
    assert float(reading[1]) >= 0.4  # all 40


def test_a_dry_run_knows_the_tokens_of_all_images_and_decodes_those_of_rows_that_it_generates(
    monkeypatch, tmp_path, capsys
):
    """Of images that lie on their side, too."""
    exif = Image.Exif()
    exif[0x0112] = 6
    for number in range(300):
        file = encoded(pixels(16, 16 * (1 + number % 9), number), "JPEG", exif=exif)
        (tmp_path / f"{number:03d}.jpg").write_bytes(file)
    settings = [f"data.path={tmp_path}", "data.image_column=image", "data.prompt_template=What?", "model=fake"]
    settings += ["model.mmproj=eyes", "runtime.slots=4", "sampling.max_tokens=2", "store.images_mb=0"]
    job = ["job=generate", *settings, f"output_dir={tmp_path / 'out'}", "progress=none"]
    decoded = []

    def decode(image: dict[str, Any], limit: int) -> Any:
        decoded.append(image["path"])
        return read_image(image, limit)

    def refuse(*_: Any) -> Any:
        raise AssertionError("an image is decoded to count its tokens")

    with monkeypatch.context() as patched:
        patched.setattr("operators.engine.images.columns.read_image", refuse)
        patched.setattr("operators.engine.images.encoded.read_image", decode)
        assert main([*job, "dry_run=true"]) == ExitCode.DONE
    text = capsys.readouterr().out
    assert len(decoded) == len(set(decoded)) == MOST_ROWS
    assert main(job) == ExitCode.DONE
    tokens = pl.read_parquet(tmp_path / "out/metrics/rows.parquet")["prompt_tokens"].sum()
    assert f"  tokens in    {tokens:,}\n" in text
    assert "images (to read them, beside the model: " in text
    assert main([*job, "dry_run=true", "overwrite=true"]) == ExitCode.DONE
    assert "100% of the rows are in the completion store" in capsys.readouterr().out
