"""What libmtmd makes of an image depends on the image alone, and a layout on its size alone: in each family."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from operators.engine.backend.images import Encoded, ImageCells, Pixels
from operators.llama.model import LlamaModel, load
from operators.llama.vision import LlamaVision, libmtmd
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline import PROJECT
from pipeline.api.errors import ConfigError
from tests.operators.llama.gguf_files import copied

IMAGES = PROJECT / "tests/families/images"
FAMILIES = ("qwen2vl", "qwen2.5vl", "qwen3vl", "smolvlm", "gemma3")
SIZES = ((128, 96), (200, 150), (64, 160), (30, 20))


def settings_of(family: str) -> ModelSettings:
    return ModelSettings(path=str(IMAGES / f"{family}.gguf"), mmproj=str(IMAGES / f"mmproj-{family}.gguf"))


def vision_of(model: LlamaModel, threads: int | None = None) -> LlamaVision:
    if threads is not None:
        model.lease(EngineSettings(slots=1, max_sequence_tokens=64, threads=threads))[1]()
    assert model.vision is not None
    return model.vision


def picture(width: int, height: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def bits(blocks: list[Encoded]) -> list[bytes]:
    return [block.embeddings.tobytes() for block in blocks]


@pytest.fixture(scope="module", params=FAMILIES)
def vision(request) -> Iterator[LlamaVision]:
    model = load(settings_of(request.param))
    yield vision_of(model)
    model.close()


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_what_is_encoded_is_what_the_layout_says(vision, size):
    pixels = vision.resize.apply(picture(*size))
    layout = vision.layout(*vision.resize.size(*size))
    cells = [part for part in layout if isinstance(part, ImageCells)]
    texts = [part for part in layout if not isinstance(part, ImageCells)]
    assert cells
    assert all(text.dtype == np.int32 and len(text) and (text >= 0).all() for text in texts)
    made = vision.encode(pixels)
    assert [ImageCells(len(each.embeddings), each.positions) for each in made] == cells
    for each in made:
        assert each.embeddings.dtype == np.float32
        assert each.embeddings.shape[1] == vision.width
        assert (each.offsets is None) == (not vision.mrope)
        if each.offsets is None:
            assert each.positions == len(each.embeddings)
        else:
            assert each.offsets.dtype == np.int32
            assert each.offsets.shape == (4, len(each.embeddings))
            assert each.offsets.max() + 1 == each.positions < len(each.embeddings)
            assert len(set(zip(*each.offsets.tolist(), strict=True))) == len(each.embeddings)


def test_bits_are_those_of_the_image_whatever_was_encoded_before(vision):
    one, other = (vision.resize.apply(picture(128, 96, seed)) for seed in (1, 2))
    made = vision.encode(one)
    first = bits(made)
    assert bits(vision.encode(other)) != first
    assert bits(made) == first, "it is no view of what libmtmd writes to"
    assert bits(vision.encode(one)) == first


def test_another_thread_may_ask_for_layouts_while_an_image_is_encoded(vision):
    pixels = vision.resize.apply(picture(200, 150))
    alone, sizes = bits(vision.encode(pixels)), [vision.resize.size(16 * i, 48) for i in range(2, 12)]
    layouts = [repr(vision.layout(*size)) for size in sizes]
    found: list[list[str]] = []

    def ask() -> None:
        for _ in range(5):
            vision._layouts.cache_clear()
            found.append([repr(vision.layout(*size)) for size in sizes])

    thread = threading.Thread(target=ask)
    thread.start()
    made = [bits(vision.encode(pixels)) for _ in range(5)]
    thread.join()
    assert made == [alone] * 5
    assert found == [layouts] * 5


@pytest.mark.parametrize("family", FAMILIES)
def test_the_number_of_threads_changes_no_bit(family):
    made = []
    for threads in (1, 2, 3):
        model = load(settings_of(family))
        vision = vision_of(model, threads)
        made.append(bits(vision.encode(vision.resize.apply(picture(200, 150)))))
        model.close()
    assert made[0] == made[1] == made[2]


def test_nothing_is_printed(capfd):
    model = load(settings_of("qwen2vl"))
    vision = vision_of(model)
    vision.encode(vision.resize.apply(picture(64, 64)))
    model.close()
    assert capfd.readouterr() == ("", "")


def test_an_image_that_was_not_resized_is_refused(vision):
    width, height = vision.resize.size(64, 64)
    with pytest.raises(ValueError, match="resize"):
        vision.encode(picture(width + 1, height))


def test_numbers_that_are_not_finite_are_an_error_of_the_image(tmp_path):
    def broken(tensor):
        return np.full_like(tensor.data, np.nan) if tensor.name == "mm.2.bias" else tensor.data

    path = copied(IMAGES / "mmproj-qwen2vl.gguf", tmp_path / "mmproj.gguf", rows=broken)
    model = load(replace(settings_of("qwen2vl"), mmproj=str(path)))
    vision = vision_of(model)
    with pytest.raises(ValueError, match="not finite"):
        vision.encode(vision.resize.apply(picture(64, 64)))
    model.close()


def test_a_model_without_an_encoder_reads_no_images():
    model = load(replace(settings_of("qwen2vl"), mmproj=None))
    assert model.vision is None
    model.close()


def test_a_vocabulary_alone_lays_out_as_the_model_does():
    """A dry run counts tokens without weights."""
    layouts = []
    for vocab_only in (False, True):
        model = LlamaModel(settings_of("qwen3vl"), vocab_only=vocab_only)
        vision = vision_of(model)
        layouts.append((repr(vision.layout(128, 96)), vision.width))
        model.close()
    assert layouts[0] == layouts[1]


def test_a_build_without_libmtmd_says_what_builds_it(monkeypatch):
    monkeypatch.setenv("MTMD_CPP_LIB", str(Path(__file__).parent))
    monkeypatch.delitem(sys.modules, "llama_cpp.mtmd_cpp", raising=False)
    libmtmd.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r"has no libmtmd.*`python -m pipeline build`"):
            libmtmd()
    finally:
        monkeypatch.undo()
        libmtmd.cache_clear()
