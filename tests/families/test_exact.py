"""Families whose logits are the same to the bit in any company: what runtime.deterministic promises."""

from __future__ import annotations

import numpy as np
import pytest

from operators.engine.sampling.params import SamplingParams
from operators.llama.header import read_header
from operators.llama.kernels import CLASSES
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from tests.families.test_families import FAMILIES, HERE
from tests.operators.llama.test_decoding import LENGTHS, complete, texts
from tools.models.make_model import quantize_file

SHUFFLED = np.random.default_rng(1).permutation(len(LENGTHS)).tolist()


@pytest.mark.parametrize("file_type", ["f32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_same_to_the_bit_in_any_company(family, file_type, tmp_path):
    path = HERE / f"{family}.gguf"
    if file_type != "f32":
        path = tmp_path / "model.gguf"
        quantize_file(HERE / f"{family}.gguf", path, file_type)
    model = LlamaModel(ModelSettings(path=str(path)))
    assert model.doubt is None
    params, prompts = SamplingParams(temperature=1.0, top_k=40), texts(len(LENGTHS))
    expected = complete(model, prompts, range(len(LENGTHS)), params, slots=16)
    assert complete(model, prompts, SHUFFLED, params, slots=3) == expected
    model.close()


def test_every_class_has_a_family_here():
    """So that what is promised for a class is tested."""
    found = {CLASSES[str(read_header(HERE / f"{family}.gguf").architecture)] for family in FAMILIES}
    assert found | {"encoder"} == set(CLASSES.values())  # tests/families/test_encoders.py
