"""Images of rows: encoded once each, kept within bounds, and in no other place of a prompt than their own."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from operators.engine.backend.fake import FakeModel
from operators.engine.backend.fake_vision import FakeVision
from operators.engine.backend.images import Encoded, Pixels
from operators.engine.backend.text_columns import TextColumns
from operators.engine.images import encoded as of_engine
from operators.engine.images.cells import cell_ids
from operators.engine.images.columns import ImagePrompts
from operators.engine.images.encoded import CHANGED, EncodedImages
from operators.engine.images.files import EncodedFiles
from operators.images.columns import IMAGE_MARK, MOST_PIXELS, PROMPT_IMAGES, limited
from operators.images.read import BadImage, read_image
from operators.images.resize import digest_of
from operators.rows.token_lists import PROMPT_IDS
from operators.settings import ModelSettings
from operators.settings.model import TEXT
from operators.tokens import Tokenize
from pipeline.api.errors import ExitCode, PipelineError
from pipeline.api.records import Batch
from pipeline.cli.main import main
from tests.operators.images.files import encoded, pixels

I = IMAGE_MARK  # noqa: E741


def image(number: int, width: int = 32, height: int = 32) -> dict[str, Any]:
    return {"bytes": encoded(pixels(width, height, number), "PNG"), "path": None}


def tokenized(texts: list[str], images: list[list[dict[str, Any]] | None], vision: FakeVision) -> pa.RecordBatch:
    """The rows of `texts` and `images` as Tokenize leaves them; none is refused."""
    data = pa.record_batch([pa.array(texts), pa.array(images, PROMPT_IMAGES.type)], ["prompt_text", PROMPT_IMAGES.name])
    ids, placed, refused = ImagePrompts(TextColumns(FakeModel(), TEXT), vision, 0).tokenize(data, "prompt_text")
    assert not refused
    return pa.record_batch([ids, placed], [PROMPT_IDS.name, PROMPT_IMAGES.name])


def embeddings(images: EncodedImages, data: pa.RecordBatch) -> list[list[bytes]]:
    return [[span.encode().embeddings.tobytes() for span in spans] for _, spans in images.prompts(data)]


def test_cells_stand_where_the_marks_were_and_have_the_ids_of_their_image():
    """One image of one block, one of two; the ids depend on the pixels, the block and the encoder."""
    one, two, vision = image(1), image(2, 128, 16), FakeVision("eyes")
    (ids,), (images,) = (column.to_pylist() for column in tokenized([f"a{I}b{I}c"], [[one, two]], vision).columns)
    pieces: list[list[int]] = [[ord("a")]]
    for number, size, behind in ((1, (32, 32), "b"), (2, (128, 16), "c")):
        digest, numbers = digest_of(pixels(*size, number)) + b"eyes", count()
        for part in vision.layout(*size):
            own = part if isinstance(part, np.ndarray) else cell_ids(digest, next(numbers), part.tokens)
            pieces.append(own.tolist())
        pieces.append([ord(behind)])
    assert ids == list(chain(*pieces))
    assert [(each["starts"], each["cells"]) for each in images] == [([2], [4]), ([9, 18], [8, 8])]
    others = tokenized([f"a{I}b{I}c"], [[one, two]], FakeVision("other eyes")).column(0).to_pylist()[0]
    assert [a == b for a, b in zip(ids, others, strict=True)] == [token >= 0 for token in ids]


@pytest.mark.parametrize(("text", "places"), [(f"{I}{I}", 2), ("a", 0)])
def test_a_prompt_has_a_place_for_each_image(text, places):
    data = pa.record_batch(
        [pa.array([text]), pa.array([[image(1)]], PROMPT_IMAGES.type)], ["prompt_text", PROMPT_IMAGES.name]
    )
    refused = ImagePrompts(TextColumns(FakeModel(), TEXT), FakeVision("eyes"), 0).tokenize(data, "prompt_text")[2]
    assert refused == {0: f"the prompt has places for {places} images, and the row has 1"}


class WithBos(FakeModel):
    add_bos = True

    def tokenize(self, texts: Sequence[bytes], *, special: bool) -> tuple[Any, Any]:
        return super().tokenize([b"\x01" + text for text in texts], special=special)


def test_only_the_first_text_of_a_prompt_has_a_bos():
    data = pa.record_batch(
        [pa.array([f"a{I}b"]), pa.array([[image(1)]], PROMPT_IMAGES.type)], ["prompt_text", PROMPT_IMAGES.name]
    )
    ids, *_ = ImagePrompts(TextColumns(WithBos(), TEXT), FakeVision("eyes"), 1).tokenize(data, "prompt_text")
    assert [token for token in ids[0].as_py() if 0 <= token < 256] == [1, ord("a"), ord("b")]


def test_an_image_is_encoded_once_while_it_is_kept(monkeypatch, tmp_path):
    """In the order of use: with room for two, the third that is asked for drops the one not used for longest."""
    vision = FakeVision("eyes")
    data = tokenized([I] * 6, [[image(n)] for n in (1, 2, 1, 3, 1, 2)], vision)
    images = EncodedImages(FakeModel(vision=vision), 2 * 4 * 2 * 4)
    found = embeddings(images, data)
    counts = images.counts
    assert [vision.encoded, counts.images_encoded, counts.images_at_hand, counts.images_again] == [4, 4, 2, 1]
    assert found[0] == found[2] == found[4] != found[1] == found[5] != found[3]
    assert embeddings(EncodedImages(FakeModel(vision=FakeVision("eyes")), 0), data) == found
    monkeypatch.setenv("LLAMA_PIPELINE_CACHE", str(tmp_path))
    for new in (3, 0):  # the second has the files of the first
        images = EncodedImages(FakeModel(vision=(vision := FakeVision("eyes"))), 0, 1 << 20)
        assert embeddings(images, data) == found
        assert (vision.encoded, images.counts.images_from_files) == (new, 6 - new)


def test_an_image_whose_file_has_changed_costs_its_row(tmp_path):
    path, vision = tmp_path / "a.png", FakeVision("eyes")
    path.write_bytes(image(1)["bytes"])
    data = tokenized([I], [[{"bytes": None, "path": str(path)}]], vision)
    path.write_bytes(image(2)["bytes"])
    with pytest.raises(BadImage, match=CHANGED[:30]):
        embeddings(EncodedImages(FakeModel(vision=vision), 1 << 20), data)


def blocks(number: int) -> list[Encoded]:
    offsets = np.arange(16, dtype=np.int32).reshape(4, 4)
    return [Encoded(np.full((4, 8), number, np.float32), offsets, 2), Encoded(np.full((2, 8), 9, np.float32), None, 2)]


def test_files_of_images_are_whole_or_none_and_bounded(monkeypatch, tmp_path):
    """A run writes no more than the bound, and no file of which few would fit; the newest of several runs stay."""
    monkeypatch.setenv("LLAMA_PIPELINE_CACHE", str(tmp_path))
    folder, bound = tmp_path / "encoded_images", 80_000
    for begin in (0, 80, 160):
        files = EncodedFiles("eyes", bound)
        for number in range(begin, begin + 80):
            files.write(bytes([number]), blocks(number))
        assert sum(path.stat().st_size for path in folder.rglob("*.npz")) <= bound
        if not begin:  # somebody else's, and old
            (folder / "aa").mkdir(exist_ok=True)
            (folder / "aa" / "photo.png").write_bytes(bytes(bound))
            os.utime(folder / "aa" / "photo.png", (0, 0))
    files = EncodedFiles("eyes", bound)
    there = [number for number in range(256) if files.read(bytes([number])) is not None]
    stored = list(folder.rglob("*.npz"))
    assert 20 < len(there) == len(stored) < 80
    assert min(there) >= 160
    assert (folder / "aa" / "photo.png").exists()
    first, second = files.read(bytes([there[0]])) or []
    expected = blocks(there[0])
    assert np.array_equal(first.embeddings, expected[0].embeddings)
    assert first.offsets is not None
    assert (first.offsets == expected[0].offsets).all()
    assert (second.offsets is None, first.positions, str(second.embeddings.dtype)) == (True, 2, "float32")
    assert EncodedFiles("other eyes", bound).read(bytes([there[0]])) is None
    files.write(b"large", [Encoded(np.zeros((1000, 8), np.float32), None, 1000)])
    assert files.read(b"large") is None
    for path in stored:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    assert all(files.read(bytes([number])) is None for number in there)


class Failing(FakeVision):
    """Fails for all images, or for those that are not gray."""

    def __init__(self, fails_for_all: bool) -> None:
        super().__init__("eyes")
        self._fails_for_all = fails_for_all

    def encode(self, pixels: Pixels) -> list[Encoded]:
        if self._fails_for_all or pixels.std() > 0:
            raise ValueError("it cannot be encoded")
        return super().encode(pixels)


def test_an_encoder_that_fails_for_any_image_ends_the_run_and_costs_no_row():
    for vision, error in ((Failing(True), PipelineError), (Failing(False), ValueError)):
        data = tokenized([I], [[image(1)]], vision)
        with pytest.raises(error, match="it cannot be encoded"):
            embeddings(EncodedImages(FakeModel(vision=vision), 1 << 20), data)


class Picky(FakeVision):
    def layout(self, width: int, height: int) -> tuple[Any, ...]:
        raise ValueError("a size that it does not take")


def test_a_size_that_the_encoder_does_not_take_costs_its_row():
    data = pa.record_batch(
        [pa.array([I, "text"]), pa.array([[image(1)], None], PROMPT_IMAGES.type)], ["prompt_text", PROMPT_IMAGES.name]
    )
    prompts = ImagePrompts(TextColumns(FakeModel(), TEXT), Picky("eyes"), 0)
    assert prompts.tokenize(data, "prompt_text")[2] == {0: "a size that it does not take"}


def test_ids_that_a_row_brings_have_no_images(tmp_path):
    """The cells of a text that they take the place of would else be computed in them."""
    ids = pa.array([[65, 66, 67], None], pa.list_(pa.int32()))
    rows = pa.record_batch(
        [pa.array([0, 1]), pa.array([I, I]), pa.array([[image(1)]] * 2, PROMPT_IMAGES.type), ids],
        ["row", "prompt_text", PROMPT_IMAGES.name, "ids"],
    )
    of_prompts = limited(PROMPT_IMAGES, MOST_PIXELS, of_columns=True)
    rows = rows.set_column(2, of_prompts, rows.column(2))
    op = Tokenize(ModelSettings(loader="operators.engine.backend.fake:load", mmproj="eyes"), ids_column="ids")
    op.plan(rows.schema)
    op._model = FakeModel(vision=FakeVision("eyes"))
    op._texts, op._images, op._sizes_alone = TextColumns(op._model, TEXT), None, False
    (made,) = [item for item in op.process(Batch(0, rows)) if isinstance(item, Batch)]
    assert made.data.column(PROMPT_IDS.name)[0].as_py() == [65, 66, 67]
    assert made.data.column(PROMPT_IMAGES.name).is_valid().to_pylist() == [False, True]


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(monkeypatch, tmp_path, caplog):
    (tmp_path / "encoded_images").write_text("a file")
    monkeypatch.setenv("LLAMA_PIPELINE_CACHE", str(tmp_path))
    files = EncodedFiles("eyes", 100_000)
    for number in range(2):
        files.write(bytes([number]), blocks(number))
        assert files.read(bytes([number])) is None
    assert caplog.text.count("is not kept in") == 1


QUESTIONS = ("What is this?", "What colour is it?", "And how many?")


def test_a_job_answers_all_questions_on_each_image_and_encodes_it_once(tmp_path):
    """With rows without images among them, in one slot and in many; a row whose image is bad is a reject."""
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(image(number)["bytes"])
    (tmp_path / "bad.png").write_bytes(b"GIF89a")
    names: list[Any] = [*(f"{n}.png" for n in range(4)), None, ["0.png", "1.png"], ["1.png", "0.png"], "bad.png"]
    rows = [{"prompt": question, "image": name} for question in QUESTIONS for name in names]
    lists = [{**row, "image": [n] if isinstance(n := row["image"], str) else n} for row in rows]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lists))
    texts = {}
    for slots in (1, 8):
        out = tmp_path / f"out{slots}"
        settings = [f"data.path={tmp_path}/rows.jsonl", "data.image_column=image", "store.images_mb=0", "chunk_rows=9"]
        engine = ["model=fake", "model.mmproj=eyes", f"runtime.slots={slots}", "sampling.max_tokens=12"]
        assert main(["job=generate", *settings, *engine, f"output_dir={out}", "progress=none"]) == ExitCode.REJECTS
        texts[slots] = pl.read_parquet(f"{out}/data/*.parquet").select("row", "image", "prompt", "completion")
        reasons = pl.read_parquet(f"{out}/rejects/*.parquet")["reason"].to_list()
        assert len(reasons) == 3
        assert all(reason.startswith(f"column 'image': '{tmp_path}/bad.png' is ") for reason in reasons)
        totals = json.loads(pl.read_parquet(out / "metrics/run.parquet")["totals"][-1])
        assert totals["images_encoded"] == 4
    assert texts[1].equals(texts[8])
    of_one = texts[1].filter(prompt=QUESTIONS[0])["completion"].to_list()
    assert len(of_one) == 7 == len(set(of_one))


@pytest.mark.parametrize("lost", ["a.png", "abc.png"])
def test_identical_rows_whose_images_are_other_files_share_no_error_of_one(tmp_path, monkeypatch, lost):
    """Each is computed with its own, and a reason names the column and the file of its row."""

    def read(image: dict[str, Any], limit: int) -> Any:
        if Path(image["path"]).stem in lost:
            raise BadImage("it is gone")
        return read_image(image, limit)

    monkeypatch.setattr(of_engine, "read_image", read)
    for name in "abc":
        (tmp_path / f"{name}.png").write_bytes(image(1)["bytes"])
    (tmp_path / "rows.csv").write_text("prompt,photo\nWhat?,a.png\nWhat?,b.png\nWhat?,c.png\n")
    out, job = tmp_path / "out", ["job=generate", "model=fake", "model.mmproj=eyes", "sampling.temperature=0"]
    data = [f"data.path={tmp_path}/rows.csv", "data.image_column=photo", "store.images_mb=0"]
    main([*job, *data, f"output_dir={out}", "progress=none", "report=false", "max_error_rate=1"])
    rejects = pl.read_parquet(out / "rejects/*.parquet")
    gone = lost.removesuffix(".png")
    assert rejects["reason"].to_list() == [f"column 'photo': '{tmp_path}/{name}.png': it is gone" for name in gone]
    assert pl.read_parquet(out / "data/*.parquet").height == 3 - len(gone)
    if len(gone) < 3:
        assert pl.read_parquet(out / "data/*.parquet")["completion"].n_unique() == 1


def test_a_dry_run_keeps_nothing_of_images_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LLAMA_PIPELINE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "0.png").write_bytes(image(0)["bytes"])
    settings = [f"data.path={tmp_path}/0.png", "data.image_column=image", "data.prompt_template=What?", "model=fake"]
    job = ["job=generate", *settings, "model.mmproj=eyes", f"output_dir={tmp_path / 'out'}", "progress=none"]
    for more, kept in (["dry_run=true"], False), ([], True):
        assert main([*job, *more]) == ExitCode.DONE
        assert (tmp_path / "cache" / "encoded_images").exists() == kept
