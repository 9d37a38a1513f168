"""Rows that grow by blocks: how they are cut, what room they take, which random numbers they draw by."""

from __future__ import annotations

import numpy as np
import pytest

from operators.engine.backend.fake import MASK_ID, N_VOCAB, FakeDecoder, FakeModel
from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import FinishReason
from operators.engine.strategies.block_diffusion.block_rows import BlockChunking, BlockRow
from operators.engine.strategies.block_diffusion.denoise import BlockDiffusion
from operators.settings.block_diffusion import BlockDiffusionSettings
from tests.operators.engine.fixtures import in_slot, shape

FLAT = np.zeros(N_VOCAB, np.float32)


def row(prompt: int, cached: int = 0, max_tokens: int = 20, seed: int = 1, **params: float) -> BlockRow:
    text = np.arange(prompt, dtype=np.int32)
    made = BlockRow("row", text, SamplingParams(**params), seed, max_tokens, block_length=4)  # type: ignore[arg-type]
    in_slot(made, cached)
    return made


@pytest.mark.parametrize(("prompt", "room", "count"), [(22, 100, 4), (22, 4, 4), (22, 3, 0), (4, 100, 4), (3, 100, 0)])
def test_a_chunk_of_a_prompt_is_one_block(prompt, room, count):
    assert BlockChunking(4).size(row(prompt), room) == count


@pytest.mark.parametrize(("prompt", "tokens", "cells"), [(8, 4, 12), (8, 5, 16), (7, 1, 8), (6, 3, 12), (1, 1, 4)])
def test_a_row_takes_room_for_whole_blocks(prompt, tokens, cells):
    assert row(prompt).cells(tokens) == cells


def test_the_rest_of_the_prompt_opens_the_first_block():
    one = row(6, cached=4)
    block = one.begin_block(MASK_ID)
    assert block.known.tolist() == [True, True, False, False]
    assert block.ids.tolist() == [4, 5, MASK_ID, MASK_ID]


def test_a_block_gives_its_tokens_behind_the_prompt_up_to_the_end_of_the_text():
    one = row(6, cached=4, max_tokens=1)
    block = one.begin_block(MASK_ID)
    block.ids[2:] = [70, 71]
    block.known[:] = True
    assert one.end_block() == 1
    assert one.tokens == [70]
    assert one.finish_reason == FinishReason.LENGTH


def test_a_row_that_begins_anew_computes_all_blocks_it_had():
    """And not the one that is being made, also once it is complete: that is stored when it comes to it again."""
    one = row(6, cached=8)
    one.tokens = [70, 71]
    block = one.begin_block(MASK_ID)
    block.ids[:] = [72, 73, 74, 75]
    for complete in (False, True):
        if complete:
            block.known[:] = True
            one.end_block()
        in_slot(one, 0)
        assert one.next_tokens(one.to_compute).tolist() == [0, 1, 2, 3, 4, 5, 70, 71]
        in_slot(one, 8)
        assert one.to_compute == 0


def test_a_token_is_drawn_by_seed_position_and_step():
    strategy = BlockDiffusion(BlockDiffusionSettings(), FakeDecoder(shape(block=4)), FakeModel())

    def drawn(position: int, step: int, seed: int = 1) -> int | None:
        return strategy._candidate(row(6, seed=seed, temperature=1.0), position, step, FLAT, 0)

    assert drawn(9, 2) == drawn(9, 2)
    assert len({drawn(9, step) for step in range(8)}) > 4
    assert len({drawn(position, 2) for position in range(8)}) > 4
    assert len({drawn(9, 2, seed) for seed in range(8)}) > 4
