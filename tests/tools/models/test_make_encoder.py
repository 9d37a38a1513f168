"""Encoders of images with random weights: libmtmd reads them, and the file depends on its arguments alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from tools.models.make_encoder import main
from tools.models.make_model import write_model
from tools.models.vocabularies import AROUND_IMAGES, builtin_vocabulary, read_vocabulary

pytestmark = pytest.mark.slow("makes a model and encoders")

SMALL = (
    "--n_layer",
    "2",
    "--n_embd",
    "64",
    "--n_head",
    "2",
    "--n_ff",
    "128",
    "--image_size",
    "64",
    "--patch_size",
    "8",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", images=True).path


def test_it_encodes_images_to_cells_of_the_size_of_a_token(tmp_path, model):
    path = tmp_path / "mmproj.gguf"
    assert main([str(model), str(path), *SMALL]) == 0
    loaded = LlamaModel(ModelSettings(path=str(model), mmproj=str(path)))
    try:
        assert loaded.vision is not None
        images = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)
        one, other = (loaded.vision.encode(loaded.vision.resize.apply(image)) for image in images)
        assert [each.embeddings.shape for each in one] == [(4, 64)] * 2  # a tile and an overview
        assert not np.allclose(one[0].embeddings, other[0].embeddings, rtol=0.1)
        tokens = np.frombuffer(GGUFReader(model).tensors[0].data, np.float32)
        assert 0.5 < one[0].embeddings.std() / tokens.std() < 2
    finally:
        loaded.close()


def test_bytes_depend_on_the_seed_alone(tmp_path, model):
    found = []
    for seed in ("0", "0", "1"):
        main([str(model), str(path := tmp_path / "mmproj.gguf"), *SMALL, "--seed", seed])
        found.append(path.read_bytes())
    assert found[0] == found[1] != found[2]
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (["--image_size", "500"], "a multiple of patch_size"),
        (["--n_head", "5"], "n_head=5"),
        (["--scale", "0"], "scale"),
    ],
)
def test_sizes_that_cannot_be_are_refused(tmp_path, model, capsys, sizes, said):
    with pytest.raises(SystemExit):
        main([str(model), str(tmp_path / "mmproj.gguf"), *sizes])
    assert said in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_a_vocabulary_gets_tokens_that_it_lacks(model):
    built, made = builtin_vocabulary(), read_vocabulary(model)
    assert made.n_tokens == built.n_tokens + 1 + len(AROUND_IMAGES)
    assert made.with_tokens(AROUND_IMAGES, lines=True) == made
