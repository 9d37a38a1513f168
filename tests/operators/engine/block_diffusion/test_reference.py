"""Ids equal those of the reference: for every strategy, block length, number of steps and rest of the prompt."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import pytest

from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence
from operators.generation.wiring import decode_setup
from operators.llama.model import LlamaModel
from operators.settings import DecodeSettings, ModelSettings
from operators.settings.block_diffusion import BlockDiffusionSettings, Remasking
from operators.settings.runtime import EngineSettings
from tests.operators.engine.block_diffusion.reference import Qwen3, Rules, generate
from tests.operators.engine.block_diffusion.rows import complete, prompts
from tests.sets import often
from tools.bench.rungs import complete as complete_in_this_thread
from tools.models.make_model import write_model

EXACT: dict[str, Any] = {"kv_type": "f32", "flash_attention": False}
LENGTHS = (1, 4, 8)
STEPS = {1: (1,), 4: (2, 4, 9), 8: (3, 8, 9)}
"""Fewer than the block has tokens, as many, and more."""
GRID = [(r.value, n, s) for r, n in itertools.product(Remasking, LENGTHS) for s in STEPS[n]]
TEXTS = prompts(8, longest=8)
UNIFIED: dict[str, Any] = {"slots": 5, "kv": "unified", "deterministic": False}
MAX_TOKENS = [4, 5, 6, 7, 9, 3, 5, 8]
WRONG: dict[str, dict[str, Any]] = {
    "causal prefill": {"prefill": "causal"},
    "bidirectional prefill": {"prefill": "bidirectional"},
    "no store pass": {"store": False},
    "the least confident first": {"worst": True},
    "shifted logits": {"shift": True},
}


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
        block_length=length,
        denoising_steps=steps,
        remasking=remasking,
        confidence_threshold=0.2,
        eb_threshold=2.0,
    )


def rules(remasking: str, length: int, steps: int) -> Rules:
    return Rules(length, steps, remasking, threshold=0.2, eb_threshold=2.0)


@pytest.mark.parametrize(("remasking", "length", "steps"), GRID)
@pytest.mark.parametrize("slots", often((1, 3, 16), 3))
def test_ids_are_those_of_the_reference(expected, model, remasking, length, steps, slots):
    """With 1 slot unbatched, with 3 refilled, with 16 all rows at once."""
    done = complete(model, settings(remasking, length, steps), TEXTS, MAX_TOKENS, slots=slots, **EXACT)
    assert done.ids == expected(rules(remasking, length, steps))


@pytest.mark.parametrize(("remasking", "length"), [*itertools.product(map(str, Remasking), (4, 8)), ("sequential", 1)])
def test_the_unified_layout_changes_no_id(expected, model, remasking, length):
    steps = STEPS[length][0]
    done = complete(model, settings(remasking, length, steps), TEXTS, MAX_TOKENS, **UNIFIED, **EXACT)
    assert done.ids == expected(rules(remasking, length, steps))


@pytest.mark.parametrize("path", ["tiny-qwen3moe"], indirect=True)
@pytest.mark.parametrize("remasking", ["low_confidence_static", "low_confidence_dynamic"])
def test_ids_of_models_with_experts_are_those_of_the_reference(expected, model, remasking):
    """Qwen3-MoE, as SDAR-30B-A3B: with 1 slot unbatched, refilled, all rows at once, and in the unified layout."""
    layouts: list[dict[str, Any]] = [{"slots": 1}, {"slots": 3}, {"slots": 16}, UNIFIED]
    for layout in layouts:
        done = complete(model, settings(remasking, 4, 3), TEXTS, MAX_TOKENS, **layout, **EXACT)
        assert done.ids == expected(rules(remasking, 4, 3)), layout


@pytest.mark.parametrize("wrong", WRONG, ids=list(WRONG))
def test_a_wrong_reference_gives_other_ids(expected, model, wrong):
    """What the comparison would show, if the engine did it so."""
    done = complete(model, settings("low_confidence_static", 4, 4), TEXTS, MAX_TOKENS, slots=16, **EXACT)
    assert done.ids != expected(replace(rules("low_confidence_static", 4, 4), **WRONG[wrong]))


@pytest.mark.parametrize(
    ("remasking", "length", "layout"),
    [
        *((remasking.value, 4, {"slots": 3}) for remasking in Remasking),
        ("low_confidence_static", 8, {"slots": 3}),
        ("sequential", 1, {"slots": 3}),
        ("low_confidence_static", 4, UNIFIED),
        ("low_confidence_dynamic", 8, UNIFIED),
    ],
    ids=str,
)
def test_logits_that_are_read_one_position_before_give_the_ids_of_the_reference(
    expected, model, remasking, length, layout
):
    """What is said of the first token of a block comes from the call that stored the one before."""
    steps = STEPS[length][0]
    shifted = replace(settings(remasking, length, steps), shift_logits=True)
    done = complete(model, shifted, TEXTS, MAX_TOKENS, **layout, **EXACT)
    assert done.ids == expected(replace(rules(remasking, length, steps), shift=True))


def test_blocks_of_one_token_that_are_read_one_position_before_are_one_token_a_step(model):
    shifted = BlockDiffusionSettings(block_length=1, shift_logits=True)
    runtime = EngineSettings(slots=3, max_sequence_tokens=256, **EXACT)
    decoder, give_back = model.lease(runtime)
    rows = [Sequence(i, text, SamplingParams(), i, MAX_TOKENS[i]) for i, text in enumerate(TEXTS)]
    complete_in_this_thread(decode_setup(DecodeSettings()).bind(decoder, model), rows, runtime)
    give_back()
    assert complete(model, shifted, TEXTS, MAX_TOKENS, slots=3, **EXACT).ids == {r.handle: r.tokens for r in rows}


def test_a_block_longer_than_the_text_is_one_block(path, model):
    decode, text = BlockDiffusionSettings(block_length=64, denoising_steps=8), TEXTS[6]
    done = complete(model, decode, [text], [22], **EXACT)
    assert done.ids[0] == generate(Qwen3(path), text.tolist(), 22, Rules(64, 8), model.mask_id)
    assert done.totals["denoise_passes"] == 8
    assert done.totals["discarded_tokens"] == 64 - len(text) - 22


def test_an_end_inside_a_block_is_where_the_reference_has_it(path, model, expected):
    """Each row's third token ends it and every row that makes it; the block is made whole first."""
    right = rules("low_confidence_static", 4, 2)
    stop = frozenset(ids[2] for ids in expected(right).values())
    done = complete(
        model, settings("low_confidence_static", 4, 2), TEXTS, 12, SamplingParams(stop_ids=stop), slots=3, **EXACT
    )
    reference = Qwen3(path)
    assert done.ids == {
        i: generate(reference, text.tolist(), 12, right, model.mask_id, stop) for i, text in enumerate(TEXTS)
    }
    assert all(len(ids) <= 2 for ids in done.ids.values())
    assert {row.finish_reason for row in done.rows.values()} == {"stop"}
