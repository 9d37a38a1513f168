"""Images in company: a row has the bits that it has alone, whoever is beside it, whatever they share and whenever its
images were encoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from operators.engine.backend.images import ImageCells, ImageSpan
from operators.engine.images.cells import cell_ids
from operators.engine.sampling.params import SamplingParams
from operators.images.resize import digest_of
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.model import KERNELS
from operators.settings.runtime import EngineSettings
from tests.operators.images.files import pixels
from tests.operators.llama.test_decoding import COUNTS, complete
from tests.sets import often
from tools.models.make_model import quantize_file

pytestmark = pytest.mark.slow("decodes with models that read images")

HERE = Path(__file__).parent / "images"
FAMILIES = ("gemma3", "qwen2.5vl", "qwen2vl", "qwen3vl", "smolvlm")
PARAMS = SamplingParams(temperature=1.0, top_k=40)
ROOM: dict[str, Any] = {"n_ubatch": 2048, "max_tokens": 6}
Prompt = tuple[np.ndarray, tuple[ImageSpan, ...]]


@pytest.fixture(scope="module", params=often(KERNELS, "auto"))
def kernels(request) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=often(("f32", "bf16", "q8_0"), "f32"))
def weights(request) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=often(FAMILIES, "gemma3", "qwen3vl", "smolvlm"))
def model(request, kernels, weights, tmp_path_factory) -> Iterator[LlamaModel]:
    if (kernels, weights) == ("llama.cpp", "q8_0"):
        pytest.skip("llama.cpp's kernels promise no bits for these weights (docs/models.md)")
    path = HERE / f"{request.param}.gguf"
    if weights != "f32":
        path = tmp_path_factory.mktemp("weights") / path.name
        quantize_file(HERE / path.name, path, weights)
    mmproj = str(HERE / f"mmproj-{request.param}.gguf")
    loaded = LlamaModel(ModelSettings(path=str(path), mmproj=mmproj, kernels=kernels))
    yield loaded
    loaded.close()


def prompt(model: LlamaModel, parts: list[str | np.ndarray]) -> Prompt:
    """The ids of texts and resized images, and the blocks of these."""
    vision = model.vision
    ids: list[np.ndarray] = []
    spans: list[ImageSpan] = []
    assert vision is not None
    for part in parts:
        if isinstance(part, str):
            ids.append(model.tokenize([part.encode()], special=True)[0])
            continue
        blocks = 0
        for own in vision.layout(part.shape[1], part.shape[0]):
            if isinstance(own, ImageCells):
                encode = partial(lambda image, block: vision.encode(image)[block], part, blocks)
                spans.append(ImageSpan(sum(map(len, ids)), own.tokens, encode))
                own, blocks = cell_ids(digest_of(part), blocks, own.tokens), blocks + 1
            ids.append(own)
    return np.concatenate(ids), tuple(spans)


def prompts(model: LlamaModel) -> list[Prompt]:
    """Two questions on each of two images, and on both in either order; long and short texts; texts alone."""
    vision = model.vision
    assert vision is not None
    small, other, large = (
        vision.resize.apply(pixels(*size, number)) for number, size in enumerate([(64, 64), (64, 64), (96, 64)])
    )
    long = "A long text, of more tokens than the other kernel has. " * 3
    made: list[list[str | np.ndarray]] = [
        [beginning, *images, question]
        for beginning, images in (
            ("Look:", [small]),
            ("Look:", [other]),
            ("Look:", [small, "and", other]),
            ("Look:", [other, small]),
            (long, [large]),
            (long, []),
            ("Hi", []),
        )
        for question in ("What is it?", "Which colour, and why? " + "x" * 70)
    ]
    return [prompt(model, parts) for parts in made]


def test_a_row_with_images_has_the_bits_that_it_has_alone(model):
    assert model.doubt(EngineSettings()) is None
    texts, images = zip(*prompts(model), strict=True)
    shuffled = np.random.default_rng(1).permutation(len(texts)).tolist()
    alone: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
    for i in range(len(texts)):
        tokens, bits = complete(model, texts, [i], PARAMS, images=images, slots=1, **ROOM)
        alone[0].update(tokens)
        alone[1].update(bits)
    for slots, order in ((1, range(len(texts))), (3, shuffled), (16, range(len(texts))), (16, shuffled)):
        threads = 1 if slots == 3 else 2
        found = complete(model, texts, order, PARAMS, images=images, slots=slots, threads=threads, **ROOM)
        assert found == alone, slots
        assert COUNTS["shared_tokens"] > 100
    assert len({tuple(tokens) for tokens in alone[0].values()}) > 8


def test_a_lone_token_between_two_blocks_has_its_own_bits_whoever_else_has_one(model):
    """llama.cpp multiplies one token of floating-point weights by another kernel than several. Of two rows that share
    nothing, in slots beside each other; around images of some models stand no tokens of their own."""
    vision = model.vision
    images = [vision.resize.apply(pixels(64, 64, number)) for number in (1, 2)]
    made: list[Prompt] = []
    for pair in (images, images[::-1]):
        ids, spans = prompt(model, pair)
        blocks = [ids[span.start : span.start + span.cells] for span in spans[:1] + spans[-1:]]
        place = len(blocks[0]) + 1
        moved = (replace(spans[0], start=0), replace(spans[-1], start=place))
        made.append((np.concatenate([blocks[0], [65], blocks[1], [66, 67, 68]]).astype(np.int32), moved))
    texts, spans_of = zip(*made, strict=True)
    alone: dict[Any, Any] = {}
    for i in range(len(texts)):
        alone |= complete(model, texts, [i], PARAMS, images=spans_of, slots=1, **ROOM)[1]
    assert complete(model, texts, range(len(texts)), PARAMS, images=spans_of, slots=2, **ROOM)[1] == alone
