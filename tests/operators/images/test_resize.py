"""Pictures get the sizes and the pixels of transformers' processors, and libmtmd resizes none of them again.

transformers_sizes.json was made by transformers 5.24 with Pillow 13: its processors for Pillow, over `pixels` of files.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from operators.images.read import BadImage
from operators.images.resize import Resize, ResizeRule, digest_of, resize_of
from pipeline.api.errors import ConfigError, InputError
from tests.operators.images.files import pixels

REFERENCE = json.loads((Path(__file__).parent / "transformers_sizes.json").read_text(encoding="utf-8"))
QWEN = REFERENCE["qwen2-vl"]["header"]
QWEN3 = REFERENCE["qwen3-vl"]["header"]
TILES = REFERENCE["idefics3"]["header"]


@pytest.mark.parametrize("family", REFERENCE)
def test_sizes_and_pixels_are_those_of_transformers(family):
    resize = resize_of(REFERENCE[family]["header"])
    assert not resize.doubt
    for width, height, *size, digest in REFERENCE[family]["cases"]:
        picture = pixels(width, height, 3)
        resized = resize.apply(picture)
        assert resize.size(width, height) == tuple(size) == resized.shape[1::-1]
        assert digest_of(resized).hex() == digest
        assert resize.apply(resized) is resized


def some_sizes(count: int) -> list[tuple[int, int]]:
    rng = random.Random(7)
    sides = [(int(math.exp(rng.uniform(0, 9))), int(math.exp(rng.uniform(0, 9)))) for _ in range(count)]
    return [(w, h) for w, h in sides if max(w, h) <= 200 * min(w, h)]


def in_mtmd(size: tuple[int, int], resize: Resize) -> tuple[int, int]:
    """Return the size that libmtmd makes of a picture, in its float32 (calc_size_preserved_ratio), or for tiles in
    doubles (mtmd_image_preprocessor_idefics3)."""
    if resize.rule is ResizeRule.TILES:
        longest, aspect = resize.longest, size[0] / size[1]
        other = int(longest / aspect) if size[0] >= size[1] else int(longest * aspect)
        scaled = (longest, other + other % 2) if size[0] >= size[1] else (other + other % 2, longest)
        return tuple(-(-side // resize.unit) * resize.unit for side in scaled)  # type: ignore[return-value]
    one = np.float32
    cell, area = one(resize.unit), one(size[0]) * one(size[1])
    sides = [max(resize.unit, int(one(np.floor(one(side) / cell + one(0.5)))) * resize.unit) for side in size]
    if sides[0] * sides[1] > resize.most:
        scale = np.sqrt(area / one(resize.most))
        sides = [max(resize.unit, int(np.floor(one(side) / scale / cell)) * resize.unit) for side in size]
    elif sides[0] * sides[1] < resize.least:
        scale = np.sqrt(one(resize.least) / area)
        sides = [int(np.ceil(one(side) * scale / cell)) * resize.unit for side in size]
    return sides[0], sides[1]


@pytest.mark.parametrize("family", REFERENCE)
def test_mtmd_leaves_the_size_as_it_is(family):
    resize = resize_of(REFERENCE[family]["header"])
    if resize.rule is ResizeRule.SQUARE:  # of the size that libmtmd stretches to
        assert resize.unit == REFERENCE[family]["header"]["clip.vision.image_size"]
        return
    taken = 0
    for size in some_sizes(400):
        try:
            made = resize.size(*size)
        except BadImage:
            continue
        taken += 1
        assert in_mtmd(made, resize) == made == resize.size(*made), size
    assert taken > 200


SHAPES = [(1, n) for n in (*range(1, 400), *range(400, 20_000, 97))]


@pytest.mark.parametrize(
    "resize",
    [
        *(resize_of(REFERENCE[family]["header"]) for family in REFERENCE),
        resize_of(QWEN, {"min": 1, "max": 1}),
        *(Resize(ResizeRule.TILES, tile, longest=tile * count) for tile in (364, 392, 512) for count in (1, 4, 8)),
        Resize(ResizeRule.KEEP),
    ],
    ids=str,
)
def test_a_size_is_whole_units_and_no_side_is_nothing(resize):
    taken = 0
    for width, height in [*SHAPES, *((n, one) for one, n in SHAPES)]:
        try:
            made = resize.size(width, height)
        except BadImage:
            continue
        taken += 1
        assert all(side >= 1 and side % resize.unit == 0 for side in made), (width, height)
        assert resize.size(*made) == made, (width, height)
    assert taken
    assert resize.apply(pixels(1, 1)).size


def test_limits_are_the_narrower_ones_unless_given():
    assert resize_of(QWEN) == Resize(ResizeRule.CELLS, 28, 8 * 784, 4096 * 784)
    assert resize_of(QWEN3) == Resize(ResizeRule.CELLS, 32, 64 * 1024, 4096 * 1024)
    narrow = {**QWEN, "clip.vision.image_min_pixels": 1, "clip.vision.image_max_pixels": "78400"}
    assert resize_of(narrow) == Resize(ResizeRule.CELLS, 28, 8 * 784, 78400)
    assert resize_of(QWEN3, {"min": 4, "max": None}).least == 4 * 1024
    assert resize_of(QWEN3, {"min": None, "max": 32}) == Resize(ResizeRule.CELLS, 32, 8 * 1024, 32 * 1024)
    for tokens in ({"min": 5000}, {"max": 4}):
        with pytest.raises(ConfigError, match="give both, min below max"):
            resize_of(QWEN, tokens)
    for header in (TILES, REFERENCE["gemma-3"]["header"]):
        with pytest.raises(ConfigError, match="leave the key out"):
            resize_of(header, {"max": 100})


def test_what_has_no_size_of_its_shape_is_refused():
    with pytest.raises(BadImage, match="2010 x 10 pixels: one side is more than 200 times the other"):
        resize_of(QWEN).size(2010, 10)
    assert resize_of(QWEN).size(2000, 10) == (1120, 28)
    with pytest.raises(BadImage, match=r"not within model.image_tokens=\{min: 8, max: 16\}"):
        resize_of(QWEN, {"max": 16}).size(2000, 10)


def test_other_families_are_left_to_mtmd_and_said():
    for header in ({"clip.projector_type": "pixtral"}, {"clip.vision.projector_type": "internvl"}, {}):
        resize = resize_of(header)
        assert resize.rule is ResizeRule.KEEP
        assert resize.doubt
        assert resize.size(31, 7) == (31, 7)
    picture = pixels(5, 4)
    assert resize.apply(picture) is picture
    # The steps of Idefics3 would not be the identity on what they give: libmtmd makes them, and alone.
    assert resize_of({**TILES, "clip.vision.preproc_image_size": 1000}) == Resize(ResizeRule.KEEP)
    old = {key: value for key, value in TILES.items() if "preproc" not in key}
    assert "convert the model anew" in resize_of(old).doubt


def test_a_header_without_the_numbers_is_refused():
    for header in ({"clip.projector_type": "gemma3"}, {**QWEN, "clip.vision.patch_size": 0}):
        with pytest.raises(InputError, match="where a whole number from 1"):
            resize_of(header)


def test_a_digest_is_of_shape_and_pixels():
    picture = pixels(6, 4)
    others = [picture.reshape(6, 4, 3), picture[::-1], picture + 1]
    digests = {digest_of(p) for p in (picture, *others)}
    assert len(digests) == 4
    assert {len(d) for d in digests} == {16}
    assert digest_of(np.asfortranarray(picture)) == digest_of(picture)
