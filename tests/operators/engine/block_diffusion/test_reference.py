"""Ids equal those of the reference: for every strategy, block length, number of steps and rest of the prompt."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import pytest

from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.block_diffusion import BlockDiffusionSettings, Remasking
from tests.operators.engine.block_diffusion.reference import Qwen3, Rules, generate
from tests.operators.engine.block_diffusion.rows import complete, prompts
from tools.models.make_model import write_model

EXACT: dict[str, Any] = {"kv_type": "f32", "flash_attention": False}
LENGTHS = (1, 4, 8)
STEPS = {1: (1,), 4: (2, 4, 9), 8: (3, 8, 9)}
"""Fewer than the block has tokens, as many, and more."""
GRID = [(r.value, n, s) for r, n in itertools.product(Remasking, LENGTHS) for s in STEPS[n]]
TEXTS = prompts(8, longest=8)
UNIFIED: dict[str, Any] = {"slots": 5, "kv": "unified", "deterministic": False}
MAX_TOKENS = [4, 5, 6, 7, 9, 3, 5, 8]


@pytest.fixture(scope="module")
def path(request, tmp_path_factory):
    """A model of the shape that a test asks for."""
    return write_model(
        tmp_path_factory.mktemp("model") / "tiny.gguf", shape=getattr(request, "param", "tiny"), file_type="f32"
    ).path


@pytest.fixture(scope="module")
def model(path):
    loaded = LlamaModel(ModelSettings(path=str(path)))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def expected(path, model):
    """The reference's ids of TEXTS under rules; each worked out once."""
    reference = Qwen3(path)

    @functools.cache
    def ids(rules: Rules) -> dict[int, list[int]]:
        return {
            i: generate(reference, text.tolist(), most, rules, model.mask_id)
            for i, (text, most) in enumerate(zip(TEXTS, MAX_TOKENS, strict=True))
        }

    return ids


def settings(remasking: str, length: int, steps: int) -> BlockDiffusionSettings:
    return BlockDiffusionSettings(
        block_length=length, denoising_steps=steps, remasking=remasking, confidence_threshold=0.2, eb_threshold=2.0
    )


def rules(remasking: str, length: int, steps: int) -> Rules:
    return Rules(length, steps, remasking, threshold=0.2, eb_threshold=2.0)


CASES = [
    *(
        pytest.param(*case, slots, False, marks=pytest.mark.laws)
        for case in GRID
        for slots in ({"slots": 1}, {"slots": 16})
    ),
    *((*case, {"slots": 3}, False) for case in GRID),
    *((r.value, length, STEPS[length][0], UNIFIED, False) for r, length in itertools.product(Remasking, (4, 8))),
    ("sequential", 1, 1, UNIFIED, False),
    *((remasking.value, 4, 2, {"slots": 3}, True) for remasking in Remasking),
    *(("low_confidence_static", 8, 3, {"slots": 3}, True), ("sequential", 1, 1, {"slots": 3}, True)),
    *(("low_confidence_static", 4, 2, UNIFIED, True), ("low_confidence_dynamic", 8, 3, UNIFIED, True)),
]
"""Remasking, length of a block, steps, layout, and whether logits are read one position before: then what is said of
the first token of a block comes from the call that stored the one before."""


@pytest.mark.parametrize(("remasking", "length", "steps", "layout", "shift"), CASES, ids=str)
def test_ids_are_those_of_the_reference(expected, model, remasking, length, steps, layout, shift):
    """With 1 slot unbatched, with 3 refilled, with 16 all rows at once."""
    how = replace(settings(remasking, length, steps), shift_logits=shift)
    done = complete(model, how, TEXTS, MAX_TOKENS, **layout, **EXACT)
    assert done.ids == expected(replace(rules(remasking, length, steps), shift=shift))


@pytest.mark.parametrize("path", ["tiny-qwen3moe"], indirect=True)
@pytest.mark.parametrize("remasking", ["low_confidence_static", "low_confidence_dynamic"])
def test_ids_of_models_with_experts_are_those_of_the_reference(expected, model, remasking):
    """Qwen3-MoE, as SDAR-30B-A3B: with 1 slot unbatched, refilled, all rows at once, and in the unified layout."""
    for layout in ({"slots": 1}, {"slots": 3}, {"slots": 16}, UNIFIED):
        test_ids_are_those_of_the_reference(expected, model, remasking, 4, 3, layout, False)


def test_a_block_longer_than_the_text_is_one_block(path, model):
    decode, text = BlockDiffusionSettings(block_length=64, denoising_steps=8), TEXTS[6]
    done = complete(model, decode, [text], [22], **EXACT)
    assert done.ids[0] == generate(Qwen3(path), text.tolist(), 22, Rules(64, 8), model.mask_id)
    assert done.totals["denoise_passes"] == 8
    assert done.totals["discarded_tokens"] == 64 - len(text) - 22
