"""The engine's laws hold for blocks: on the fake decoder, whose logits depend on all that a row may see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from operators.engine.backend.batch import BatchBuffer
from operators.engine.backend.fake import END_ID, N_VOCAB, FakeDecoder, FakeModel
from operators.engine.loop.step_log import STEPS_SCHEMA
from operators.engine.sampling.params import SamplingParams
from operators.engine.strategies.block_diffusion.block_rows import BlockChunking, BlockRow
from operators.engine.strategies.block_diffusion.denoise import BlockDiffusion
from operators.settings.block_diffusion import BlockDiffusionSettings
from tests.operators.engine.block_diffusion.rows import Done, complete, prompts
from tests.operators.engine.fixtures import in_slot, only, shape
from tests.operators.engine.rules import scheduled
from tests.sets import often, often_cases

pytestmark = pytest.mark.slow("denoises thousands of random blocks")

FOUR = BlockDiffusionSettings(block_length=4, denoising_steps=3)
SHIFTED = replace(FOUR, shift_logits=True)
ENDING = SamplingParams(stop_ids=frozenset({END_ID}))
WARM = SamplingParams(temperature=0.9, top_k=20, min_p=0.02, stop_ids=frozenset({END_ID}))
POISON = 300
UNIFIED: dict[str, Any] = {"kv": "unified", "deterministic": False}
COUNT = 18
TEXTS = prompts(COUNT, longest=37)
RAGGED = [1 + 7 * i % 33 for i in range(COUNT)]


def column(done: Done, name: str) -> list[int]:
    return [row[STEPS_SCHEMA.get_field_index(name)] for row in done.steps.rows]


def poisoned(batch: BatchBuffer) -> int:
    return 1 if POISON in batch.token[: batch.n_tokens] else 0


def every(count: int, code: int, after: int = 0) -> Callable[[BatchBuffer], int]:
    """Fails every so many calls; those by which a context is tried come first."""
    calls = iter(range(1, 1_000_000))
    return lambda batch: code if (call := next(calls)) % count == 0 and call > after else 0


@pytest.mark.parametrize(
    ("rules", "settings"),
    often_cases(
        [
            ({"preempt_every": 3}, {}),
            ({"preempt_every": 1}, {"optimise": only()}),
            ({}, {"optimise": only(compaction=True)}),
            ({}, {"kv": "unified", "deterministic": False}),
            ({}, {"kv": "unified", "deterministic": False, "n_ctx": 128}),
            ({"shuffle": 1}, {}),
        ],
        {"preempt_every": 1},
        {"kv": "unified", "deterministic": False, "n_ctx": 128},
        {"shuffle": 1},
    ),
    ids=str,
)
@pytest.mark.parametrize("params", often([ENDING, WARM], WARM), ids=["greedy", "warm"])
@pytest.mark.parametrize("decode", [FOUR, SHIFTED], ids=["", "shifted"])
def test_how_rows_are_scheduled_changes_no_id(rules, settings, params, decode):
    with scheduled(**rules):
        done = complete(FakeModel(), decode, TEXTS, RAGGED, params, slots=6, **settings)
    expected = complete(FakeModel(), decode, TEXTS, RAGGED, params, slots=30, optimise=only())
    assert done.ids == expected.ids
    assert done.worker.scheduler.counts.preempted or "preempt_every" not in rules


@pytest.mark.parametrize("settings", [FOUR, SHIFTED], ids=["", "shifted"])
def test_a_row_that_gave_up_its_slot_goes_on_in_the_middle_of_its_block(settings):
    """Its blocks are computed again, and what was known of the block at hand stays known."""
    expected = complete(FakeModel(), settings, TEXTS, RAGGED, slots=30)
    tight = UNIFIED | {"admission": "optimistic"}
    done = complete(FakeModel(every(5, 1, after=20)), settings, TEXTS, RAGGED, slots=6, **tight)
    assert done.ids == expected.ids
    assert done.worker.scheduler.counts.preempted


@pytest.mark.parametrize(("length", "slots", "smallest"), [(1, 1, 2), (1, 5, 2), (4, 1, 4)])
def test_no_call_has_a_single_token(length, slots, smallest):
    """llama.cpp computes one token alone with other kernels."""
    sizes: list[int] = []

    def seen(batch: BatchBuffer) -> int:
        sizes.append(batch.n_tokens)
        return 0

    decode = BlockDiffusionSettings(block_length=length)
    complete(FakeModel(seen), decode, TEXTS[:5], RAGGED[:5], slots=slots)
    assert min(sizes) == smallest
    complete(FakeModel(seen), decode, TEXTS[:5], RAGGED[:5], slots=slots, deterministic=False)
    assert min(sizes) == length


@pytest.mark.parametrize("code", often([1, 2, -1, -3], 1))
@pytest.mark.parametrize("layout", [{}, UNIFIED], ids=["per_sequence", "unified"])
def test_failures_that_pass_cost_no_row(code, layout):
    expected = complete(FakeModel(), FOUR, TEXTS, RAGGED, WARM, slots=30).ids
    for count in (2, 3, 7):
        model = FakeModel(every(count, code, after=20))
        done = complete(model, FOUR, TEXTS, RAGGED, WARM, slots=6, **layout)
        assert done.ids == expected
        assert not any(row.error for row in done.rows.values())


def test_a_poisoned_prompt_is_refused_alone():
    """Whether the poison is in a whole block of the prompt or in what opens the first block that is made."""
    guilty = {3: 0, 9: -1, 17: 5}
    texts = [text.copy() for text in TEXTS]
    for i, place in guilty.items():
        texts[i][place] = POISON
    done = complete(FakeModel(poisoned), FOUR, texts, RAGGED, slots=6)
    expected = complete(FakeModel(), FOUR, TEXTS, RAGGED, slots=6).ids
    assert {i for i, row in done.rows.items() if row.error} == set(guilty)
    assert {i: done.ids[i] for i in done.ids if i not in guilty} == {
        i: ids for i, ids in expected.items() if i not in guilty
    }


@pytest.mark.parametrize("length", [1, 4, 32])
def test_whole_blocks_of_a_prompt_are_shared_and_nothing_else(length):
    decode = BlockDiffusionSettings(block_length=length)
    random = np.random.default_rng(5)
    head = random.integers(0, 256, 50).astype(np.int32)
    texts = [np.append(head, random.integers(0, 256, size)).astype(np.int32) for size in (0, 0, 3, 9, 14, 2)]
    shared = complete(FakeModel(), decode, texts, 20, WARM, slots=3)
    assert shared.ids == complete(FakeModel(), decode, texts, 20, WARM, slots=6, optimise=only()).ids
    taken = [row.placement.shared_tokens for row in shared.rows.values()]
    assert all(count % length == 0 for count in taken)
    assert max(taken) == (0 if length == 1 else 50 - 50 % length)


def test_a_block_that_says_what_comes_behind_it_is_computed_by_each_row():
    """Where what is said of a token is read one position before it: of 48 tokens in whole blocks 44 are shared."""
    text = np.arange(50, dtype=np.int32)
    for size, taken in ((50, 44), (48, 44), (45, 40)):
        done = complete(FakeModel(), SHIFTED, [text[:size]] * 4, 20, WARM, slots=2)
        assert done.ids == complete(FakeModel(), SHIFTED, [text[:size]] * 4, 20, WARM, slots=6, optimise=only()).ids
        assert max(row.placement.shared_tokens for row in done.rows.values()) == taken


def test_a_slot_of_a_step_is_used_or_has_a_cause():
    texts = [np.arange(i % 3, 40, dtype=np.int32) for i in range(COUNT)]
    done = complete(FakeModel(), FOUR, texts, RAGGED, slots=6)
    unfilled = [name for name in STEPS_SCHEMA.names if name.startswith("unfilled_")]
    sums = zip(*(column(done, name) for name in ("rows", *unfilled)), strict=True)
    assert {sum(counts) for counts in sums} == {6}
    assert sum(column(done, "unfilled_prefix"))


def test_a_row_costs_its_prompt_blocks_and_for_each_block_the_steps_and_a_store_pass_but_the_last():
    done = complete(FakeModel(), FOUR, [np.arange(10, dtype=np.int32)], 9, slots=1)
    assert done.totals["prompt_passes"] == 2
    # Positions 10 to 19: the first block lacks 2 tokens, which takes 1 of the steps of 2, 1 and 1 tokens.
    assert done.totals["denoise_passes"] == 1 + 3 + 3
    assert done.totals["store_passes"] == 2
    assert done.totals["discarded_tokens"] == 1
    assert done.totals["committed_tokens"] == 10
    assert len(done.steps.rows) == 2 + 7 + 2


def test_logits_are_asked_for_where_tokens_are_unknown():
    """But for the second one, where a lone output would be computed with other kernels."""
    decode = BlockDiffusionSettings(block_length=4)
    texts = [np.arange(8, dtype=np.int32)]
    assert complete(FakeModel(), decode, texts, 4, slots=1, deterministic=False).totals["output_rows"] == 4 + 3 + 2 + 1
    assert complete(FakeModel(), decode, texts, 4, slots=1).totals["output_rows"] == 4 + 3 + 2 + 2


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=50.0)], ids=["greedy", "hot"])
def test_the_mask_and_what_the_file_suppresses_are_never_made(params):
    """Here that is a token that is made often otherwise."""
    free = complete(FakeModel(), FOUR, TEXTS, 20, params).ids
    common = int(np.bincount(np.concatenate(list(free.values()))).argmax())
    banned = complete(FakeModel(), replace(FOUR, mask_token_id=common), TEXTS, 20, params).ids
    assert not any(common in ids for ids in banned.values())
    model = FakeModel()
    model.suppressed_ids = (common,)
    assert not any(common in ids for ids in complete(model, FOUR, TEXTS, 20, params).ids.values())


def test_a_mask_in_a_prompt_is_a_token_like_any_other():
    text = np.array([5, FakeModel.mask_id, 6, FakeModel.mask_id, FakeModel.mask_id, 7], np.int32)
    done = complete(FakeModel(), FOUR, [text], 10, slots=1)
    assert len(done.ids[0]) == 10
    assert done.totals["committed_tokens"] == 10  # two of them in the block that the prompt opens


@pytest.mark.parametrize("most", often([1, 2, 7, 12], 7))
def test_a_smaller_max_tokens_gives_the_beginning(most):
    whole = complete(FakeModel(), FOUR, TEXTS, 30, ENDING)
    cut = complete(FakeModel(), FOUR, TEXTS, most, ENDING)
    assert cut.ids == {i: ids[:most] for i, ids in whole.ids.items()}
    ended = {i for i, ids in whole.ids.items() if len(ids) < most}
    assert {i for i, row in cut.rows.items() if row.finish_reason == "stop"} >= ended


def test_a_text_ends_at_its_first_stop_token_and_keeps_it_on_request():
    free = complete(FakeModel(), FOUR, TEXTS, 30).ids
    ended = complete(FakeModel(), FOUR, TEXTS, 30, ENDING)
    kept = complete(
        FakeModel(), FOUR, TEXTS, 30, SamplingParams(stop_ids=frozenset({END_ID}), kept_stop_ids=frozenset({END_ID}))
    )
    for i, ids in free.items():
        length = ids.index(END_ID) if END_ID in ids else 30
        assert ended.ids[i] == ids[:length]
        assert kept.ids[i] == ids[: length + 1]
        assert ended.rows[i].finish_reason == ("stop" if length < 30 else "length")
    assert len({len(ids) % 4 for ids in ended.ids.values()}) > 1, "some end inside a block"


def test_an_end_token_in_the_prompt_ends_nothing():
    texts = [np.array([END_ID, i, END_ID, 2, 3, END_ID], np.int32) for i in range(10)]
    free, ended = complete(FakeModel(), FOUR, texts, 10).ids, complete(FakeModel(), FOUR, texts, 10, ENDING).ids
    assert ended == {i: ids[: ids.index(END_ID)] if END_ID in ids else ids for i, ids in free.items()}
    assert any(ended.values())


def test_a_token_is_drawn_by_seed_position_and_step():
    flat, text, warm = np.zeros(N_VOCAB, np.float32), np.arange(6, dtype=np.int32), SamplingParams(temperature=1.0)
    strategy = BlockDiffusion(BlockDiffusionSettings(), FakeDecoder(shape(block=4)), FakeModel())

    def drawn(position: int, step: int, seed: int = 1) -> int | None:
        row = BlockRow("row", text, warm, seed, 20, block_length=4)
        in_slot(row)
        return strategy._candidate(row, position, step, flat, 0)

    assert drawn(9, 2) == drawn(9, 2)
    assert len({drawn(9, step) for step in range(8)}) > 4
    assert len({drawn(position, 2) for position in range(8)}) > 4
    assert len({drawn(9, 2, seed) for seed in range(8)}) > 4


@pytest.mark.parametrize(
    ("prompt", "room", "count", "tokens", "cells"),
    [(22, 100, 4, 1, 24), (22, 4, 4, 3, 28), (22, 3, 0, 2, 24), (4, 100, 4, 4, 8), (3, 100, 0, 2, 8)],
)
def test_a_chunk_of_a_prompt_is_one_block_and_a_row_takes_room_for_whole_ones(prompt, room, count, tokens, cells):
    row = BlockRow("row", np.arange(prompt, dtype=np.int32), WARM, 1, 20, block_length=4)
    in_slot(row)
    assert BlockChunking(4).size(row, room) == count
    assert row.cells(tokens) == cells
