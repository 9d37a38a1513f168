"""Models with experts (Qwen3-MoE, as SDAR-30B-A3B): ids equal those of the reference, batched, refilled and chained."""

from __future__ import annotations

from typing import Any

import pytest

from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.block_diffusion import BlockDiffusionSettings
from tests.operators.engine.block_diffusion.reference import Qwen3, Rules, generate
from tests.operators.engine.block_diffusion.rows import complete, prompts
from tools.models.make_model import write_model

TEXTS = prompts(6, least=3, longest=8)
MAX_TOKENS = [5, 8, 3, 9, 6, 4]
LAYOUTS: list[dict[str, Any]] = [
    {"slots": 1},
    {"slots": 3},
    {"slots": 16},
    {"slots": 4, "kv": "unified", "deterministic": False},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "experts.gguf", shape="tiny-qwen3moe").path


@pytest.fixture(scope="module")
def model(path):
    loaded = LlamaModel(ModelSettings(path=str(path)))
    yield loaded
    loaded.close()


@pytest.mark.parametrize("remasking", ["low_confidence_static", "low_confidence_dynamic"])
def test_ids_are_those_of_the_reference(path, model, remasking):
    """With 1 slot unbatched, with 3 refilled, with 16 all rows at once, in the unified layout several blocks a call."""
    reference, rules = Qwen3(path), Rules(4, 3, remasking, threshold=0.2)
    expected = {
        i: generate(reference, text.tolist(), most, rules, model.mask_id)
        for i, (text, most) in enumerate(zip(TEXTS, MAX_TOKENS, strict=True))
    }
    decode = BlockDiffusionSettings(block_length=4, denoising_steps=3, remasking=remasking, confidence_threshold=0.2)
    for layout in LAYOUTS:
        done = complete(model, decode, TEXTS, MAX_TOKENS, kv_type="f32", flash_attention=False, **layout)
        assert done.ids == expected, layout
