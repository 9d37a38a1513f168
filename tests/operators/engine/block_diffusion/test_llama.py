"""Blocks on real llama.cpp: who sees whom, bits that do not depend on the neighbours, and errors instead of aborts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

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


OFTEN = [
    *(("f32", 4, True, "warm", False), ("f32", 4, True, "greedy", True), ("q8_0", 1, False, "warm", False)),
    *(("q8_0 tiny-qwen3moe", 4, True, "greedy", False), ("q4_k_m", 4, False, "greedy", False)),
]
SWEEP = itertools.product(("f32", "q8_0", "q4_k_m"), (1, 4, 8, 32), (True, False), ("greedy", "warm"), (False,))


@pytest.mark.parametrize(
    ("model", "length", "flash", "params", "shift"),
    [*OFTEN, *(pytest.param(*case, marks=pytest.mark.laws) for case in SWEEP if case not in OFTEN)],
    indirect=["model"],
)
def test_bits_do_not_depend_on_the_neighbours(model, length, flash, params, shift):
    decode = BlockDiffusionSettings(block_length=length, denoising_steps=3, shift_logits=shift)
    drawn = WARM if params == "warm" else SamplingParams()
    count = 8 if length == 1 else 14
    results: list[tuple[Mapping[object, list[int]], dict[tuple[object, int, int], bytes]]] = []
    for slots, every in ((16, None), (1, None), (3, None), (5, 4)):
        seen: dict[tuple[object, int, int], bytes] = {}
        texts, ragged = TEXTS[:count], RAGGED[:count]
        with scheduled(preempt_every=every):
            done = complete(model, decode, texts, ragged, drawn, watching(seen), flash_attention=flash, slots=slots)
        results.append((done.ids, seen))
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
def test_blocks_that_do_not_fit_into_a_call_are_an_error_not_an_abort(model):
    settings = EngineSettings(slots=40, n_ubatch=128, deterministic=False)
    with pytest.raises(ConfigError, match="40 rows with a block of 4 tokens each do not fit into a call of 128"):
        model.lease(settings, block=4)
    decoder, give_back = model.lease(EngineSettings(slots=32, n_ubatch=128), block=4)
    with pytest.raises(DecodeFailed, match="a batch of 132 tokens is larger"):
        decoder.batch.add_spans([np.zeros(4, np.int32)] * 33, [0] * 33, list(range(33)), [0] * 33)
    give_back()
