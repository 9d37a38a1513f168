"""Blocks on real llama.cpp: who sees whom, bits that do not depend on the neighbours, and errors instead of aborts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.interface import Logits
from operators.engine.sampling.params import SamplingParams
from operators.engine.scheduler.step_batch import StepBatch
from operators.engine.strategies.block_diffusion.denoise import BlockDiffusion
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.block_diffusion import BlockDiffusionSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError
from tests.operators.engine.block_diffusion.rows import complete, prompts
from tests.operators.engine.rules import scheduled
from tools.models.make_model import write_model

pytestmark = pytest.mark.slow("denoises with a model in many companies")

TEXTS = prompts(14, longest=25)
RAGGED = [1 + 7 * i % 19 for i in range(14)]
WARM = SamplingParams(temperature=0.9, top_k=20)


@pytest.fixture(scope="module", params=["f32", "q8_0", "q4_k_m"])
def model(request, tmp_path_factory) -> Iterator[LlamaModel]:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    file_type, _, experts = request.param.partition(" ")
    write_model(path, file_type=file_type, shape=experts or ("tiny-256" if "_k" in file_type else "tiny"))
    loaded = LlamaModel(ModelSettings(path=str(path)))
    yield loaded
    loaded.close()


only_f32 = pytest.mark.parametrize("model", ["f32"], indirect=True)


def watching(seen: dict[tuple[object, int, int], bytes]) -> type[BlockDiffusion]:
    """Notes the bytes of the logits by (row, position, step)."""

    class Watching(BlockDiffusion):
        def advance(self, batch: StepBatch, logits: Logits) -> None:
            lines = iter(logits)
            for one, outputs in zip(self._passes, self._outputs, strict=True):
                for place in np.flatnonzero(outputs).tolist():
                    line = next(lines)
                    if one.row is not None and one.block is not None and one.wanted[place]:
                        seen[one.row.handle, one.first + place, one.block.step] = line.tobytes()
            super().advance(batch, logits)

    return Watching


@pytest.mark.parametrize(
    ("model", "length", "flash", "params", "shift"),
    [
        ("f32", 1, True, SamplingParams(), False),
        ("f32", 4, True, WARM, False),
        ("f32", 4, True, SamplingParams(), True),
        ("f32", 8, False, SamplingParams(), False),
        ("q8_0", 1, False, WARM, False),
        ("q8_0", 4, True, SamplingParams(), False),
        ("q8_0 tiny-qwen3moe", 4, True, SamplingParams(), False),
        ("q4_k_m", 4, False, SamplingParams(), False),
    ],
    ids=[
        "f32-1-flash",
        "f32-4-flash-warm",
        "f32-4-shifted",
        "f32-8",
        "q8_0-1-warm",
        "q8_0-4-flash",
        "q8_0-4-experts",
        "q4_k_m-4",
    ],
    indirect=["model"],
)
def test_bits_do_not_depend_on_the_neighbours(model, length, flash, params, shift):
    check_bits(model, length, flash, params, shift=shift)


@pytest.mark.laws
@pytest.mark.parametrize("length", [1, 4, 8, 32])
@pytest.mark.parametrize("flash", [True, False], ids=["flash", "plain"])
@pytest.mark.parametrize("params", [SamplingParams(), WARM], ids=["greedy", "warm"])
def test_bits_do_not_depend_on_the_neighbours_whatever_the_settings(model, length, flash, params):
    check_bits(model, length, flash, params)


def check_bits(model: LlamaModel, length: int, flash: bool, params: SamplingParams, *, shift: bool = False) -> None:
    decode = BlockDiffusionSettings(block_length=length, denoising_steps=3, shift_logits=shift)
    count = 8 if length == 1 else 14
    results: list[tuple[Mapping[object, list[int]], dict[tuple[object, int, int], bytes]]] = []
    for slots, every in ((16, None), (1, None), (3, None), (5, 4)):
        seen: dict[tuple[object, int, int], bytes] = {}
        settings: dict[str, Any] = {"flash_attention": flash, "slots": slots}
        texts, ragged = TEXTS[:count], RAGGED[:count]
        with scheduled(preempt_every=every):
            results.append((complete(model, decode, texts, ragged, params, watching(seen), **settings).ids, seen))
    assert all(result == results[0] for result in results[1:])


@only_f32
def test_a_token_sees_its_own_block_and_those_before_it(model):
    """Influence: another token at j changes the logits at i if and only if the block of j is not behind that of i."""
    decoder, give_back = model.lease(EngineSettings(slots=1, max_sequence_tokens=256), block=4)
    tokens = np.arange(20, 32, dtype=np.int32)

    def logits(ids: np.ndarray) -> np.ndarray:
        decoder.clear()
        found = []
        for start in range(0, len(ids), 4):
            decoder.batch.clear()
            decoder.batch.add_spans([ids[start : start + 4]], [start], [0], [4])
            found.append(decoder.decode().copy())
        return np.concatenate(found)

    plain = logits(tokens)
    for j in range(12):
        other = tokens.copy()
        other[j] = 99
        changed = (logits(other) != plain).any(axis=1)
        assert changed.tolist() == [j // 4 <= i // 4 for i in range(12)], j
    give_back()


@only_f32
@pytest.mark.parametrize("cache", [{}, {"flash_attention": False}, {"kv_type": "f32"}, {"kv_type": "q8_0"}], ids=str)
def test_other_caches_and_kernels_change_logits_a_little(model, cache):
    """Which may change ids: these are compared in F32 alone."""

    def logits(**settings: Any) -> np.ndarray:
        decoder, give_back = model.lease(EngineSettings(slots=2, max_sequence_tokens=256, **settings), block=4)
        for start in range(0, 40, 4):
            decoder.batch.clear()
            decoder.batch.add_spans([np.arange(start, start + 4, dtype=np.int32) * 7 % 256], [start], [1], [4])
            found: np.ndarray = decoder.decode().copy()
        give_back()
        return found

    exact = logits(kv_type="f32", flash_attention=False)
    difference = np.abs(logits(**cache) - exact).max()
    assert 0 < difference < 0.1 * exact.std()


@only_f32
def test_prefixes_and_holes_and_pauses_change_no_id(model):
    """Copies between streams, also of rows that have nothing in the KV cache yet, and rows that are computed again."""
    decode = BlockDiffusionSettings(block_length=4)
    head = np.arange(40, dtype=np.int32)
    texts = [np.append(head[: i % 3 * 20], text).astype(np.int32) for i, text in enumerate(prompts(11, longest=6))]
    ragged = [1 + 11 * i % 30 for i in range(11)]
    alone = {i: complete(model, decode, [texts[i]], [ragged[i]]).ids[0] for i in range(11)}
    for slots, every in ((11, None), (4, None), (6, 1), (4, 3)):
        with scheduled(preempt_every=every):
            done = complete(model, decode, texts, ragged, slots=slots)
        assert done.ids == alone, (slots, every)
    assert done.worker.scheduler.counts.moves
    assert done.worker.scheduler.counts.shared_tokens


@only_f32
def test_contexts_are_made_once(model):
    before = model.contexts.made
    for _ in range(3):
        complete(model, BlockDiffusionSettings(), TEXTS[:3], 5, slots=9)
    assert model.contexts.made == before + 1


@only_f32
def test_blocks_that_do_not_fit_into_a_call_are_an_error_not_an_abort(model):
    settings = EngineSettings(slots=40, n_ubatch=128, deterministic=False)
    with pytest.raises(ConfigError, match="40 rows with a block of 4 tokens each do not fit into a call of 128"):
        model.lease(settings, block=4)
    decoder, give_back = model.lease(EngineSettings(slots=32, n_ubatch=128), block=4)
    with pytest.raises(DecodeFailed, match="a batch of 132 tokens is larger"):
        decoder.batch.add_spans([np.zeros(4, np.int32)] * 33, [0] * 33, list(range(33)), [0] * 33)
    give_back()


@only_f32
def test_a_block_that_is_not_dropped_is_an_error(model):
    """llama.cpp wants positions that follow each other: a denoising step whose rest stays does not go unnoticed."""
    decoder, give_back = model.lease(EngineSettings(slots=1), block=4)
    block = np.arange(4, dtype=np.int32)
    for position, works in ((0, True), (4, True), (4, False)):
        decoder.batch.clear()
        decoder.batch.add_spans([block], [position], [0], [0])
        if works:
            decoder.decode()
        else:
            with pytest.raises(DecodeFailed):
                decoder.decode()
    decoder.clear()
    give_back()
