"""Where a prompt may be cut: the promise on which shared prefixes and pieces rest."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from operators.engine.backend.batch import DecodeFailed
from operators.llama.contexts.context import LlamaContext
from operators.llama.model import LlamaModel
from operators.llama.packed import library_path
from operators.settings import ModelSettings
from operators.settings.model import KERNELS
from operators.settings.runtime import EngineSettings, OptimiseSettings
from tests.operators.llama.kernels.test_graphs import DENSE, padded, written
from tests.operators.llama.test_decoding import COUNTS, EXACT, WARM, complete, compute, model, model_file
from tests.sets import often

__all__ = ["model", "model_file"]

CUTS = {
    300: [[64, 236], [100, 200], [236, 64], [64, 64, 64, 108]],
    700: [[512, 188], [64, 636], [333, 367], [64] * 9 + [124]],
    130: [[65, 65], [64, 66]],
    60: [[30, 30], [20, 20, 20], [7, 53], [58, 2]],
}


def logits_of(decoder: LlamaContext, ids: np.ndarray, cuts: list[int]) -> bytes:
    """The logits after `ids`, computed in pieces, and of two decode steps after it."""
    decoder.clear()
    past = 0
    for count in cuts:
        last = past + count == len(ids)
        logits = compute(decoder, ids[past : past + count], past, outputs=min(2, count) if last else 0)
        past += count
        decoder.truncate(0, past)
    made = [logits[-1].tobytes()]
    for step in range(2):
        decoder.batch.clear()
        decoder.batch.add_rows([step, 5], [past + step, step], [0, 1])
        made.append(decoder.decode()[0].tobytes())
    return b"".join(made)


@pytest.mark.parametrize("model_file", EXACT, indirect=True)
@pytest.mark.parametrize("length", CUTS)
def test_pieces_of_the_same_kernel_give_the_same_bits(model: LlamaModel, length: int):
    decoder, give_back = model.lease(EngineSettings(slots=2, max_sequence_tokens=1024, n_ubatch=1024))
    ids = np.random.default_rng(length).integers(0, 300, length).astype(np.int32)
    whole = logits_of(decoder, ids, [length])
    for cuts in CUTS[length]:
        assert logits_of(decoder, ids, cuts) == whole, cuts
    give_back()


def step(decoder: LlamaContext, past: int, *, company: bool) -> bytes:
    """The logits of a decode step of a row with `past` tokens."""
    decoder.clear()
    compute(decoder, np.arange(past, dtype=np.int32) % 290, outputs=2)
    decoder.batch.clear()
    slots = [0, 1] if company else [0]
    decoder.batch.add_rows([7] * len(slots), [past, 0][: len(slots)], slots)
    return decoder.decode()[0].tobytes()


@pytest.mark.parametrize("model_file", EXACT, indirect=True)
@pytest.mark.parametrize("flash_attention", [True, False])
def test_a_row_may_be_alone_where_the_decoder_says_so(model: LlamaModel, flash_attention: bool):
    settings = EngineSettings(slots=2, threads=2, max_sequence_tokens=1024, flash_attention=flash_attention)
    decoder, give_back = model.lease(settings)
    for past in (2, 63, 64, 200, 255, 256, 300, 511, 600):
        if past < decoder.lone_tokens:
            assert step(decoder, past, company=False) == step(decoder, past, company=True), past
    give_back()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("file_type", often(["q8_0", "q4_0", "q4_k_m", "q5_k_m", "q6_k"], "q8_0"))
def test_rules_are_for_what_is_not_exact(tmp_path, monkeypatch, kernels, file_type):
    """An exact decoder has the same bits for a row alone, and wherever a prompt is cut. If the others have, too,
    llama.cpp has changed for the better, and rules cost time for nothing."""
    path = written(tmp_path, monkeypatch, DENSE, file_type, padded)
    model = LlamaModel(ModelSettings(path=str(path), kernels=kernels))
    decoder, _ = model.lease(EngineSettings(slots=2, threads=2, max_sequence_tokens=1024, n_ubatch=1024))
    assert decoder.shape.exact == (kernels == "auto" and library_path().exists())
    assert decoder.shape.needs_rules != decoder.shape.exact
    ids = np.random.default_rng(0).integers(0, 300, 600).astype(np.int32)
    whole = logits_of(decoder, ids, [600])
    cuts = ([537, 63], [1] * 3 + [597], [599, 1], [61] * 9 + [51])
    same = [logits_of(decoder, ids, each) == whole for each in cuts]
    same += [step(decoder, past, company=False) == step(decoder, past, company=True) for past in (300, 600)]
    assert all(same) if decoder.shape.exact else not any(same)
    model.close()


@pytest.mark.parametrize(
    "settings", [{"flash_attention": False}, {"kv_type": "q8_0"}, {"deterministic": False}], ids=str
)
def test_a_decoder_is_exact_where_all_of_it_is_ours(model: LlamaModel, settings):
    decoder, give_back = model.lease(EngineSettings(slots=2, max_sequence_tokens=256, **settings))
    assert not decoder.shape.needs_rules if "deterministic" in settings else not decoder.shape.exact
    give_back()


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("model_file", ["q8_0"], indirect=True)
def test_whether_a_decoder_is_exact_is_found_without_a_team_of_threads(model):
    """With a second team there are more threads than cores, and OpenMP has them sleep at each operation of the first:
    steps took 81 ms instead of 64."""

    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    def counted() -> tuple[int, int, bool]:
        before = threads()
        decoder, give_back = model.lease_apart(EngineSettings(slots=2, threads=2, max_sequence_tokens=256))
        made, _ = threads() - before, give_back()
        return made, threads() - before, decoder.shape.exact

    with ThreadPoolExecutor(1) as fresh:  # which has no team yet
        assert fresh.submit(counted).result() == (0, 0, model.packed.version > 0)


@pytest.mark.parametrize("model_file", ["q8_0"], indirect=True)
def test_an_exact_decoder_computes_each_token_of_common_beginnings_once(model):
    """However short what a prompt has of its own, and whatever side of 64 tokens it is on."""
    random = np.random.default_rng(5)
    head = random.integers(0, 255, 300)
    own = [(2, 300), (40, 300), (63, 50), (64, 300), (100, 300), (150, 300), (30, 50), (7, 300)] * 2
    prompts = [np.concatenate([head[:common], random.integers(0, 255, n)]).astype(np.int32) for n, common in own]
    distinct = len({prompt[:end].tobytes() for prompt in prompts for end in range(1, len(prompt) + 1)})
    expected = complete(model, prompts, range(16), WARM, slots=16, optimise=OptimiseSettings(prefix_sharing=False))
    assert COUNTS["prefill_tokens"] == sum(map(len, prompts))
    assert complete(model, prompts, range(16), WARM, slots=4) == expected
    assert (COUNTS["prefill_tokens"] == distinct) == (model.packed.version > 0)


@pytest.mark.parametrize("model_file", ["q8_0"], indirect=True)
def test_a_row_that_was_copied_is_saved_as_it_is_and_one_that_is_restored_stays(model: LlamaModel):
    """llama.cpp copies between streams at the next decode only."""
    decoder, give_back = model.lease(EngineSettings(slots=3, max_sequence_tokens=512))
    texts = [np.random.default_rng(seed).integers(0, 300, 80).astype(np.int32) for seed in (1, 2)]

    def after(slot: int) -> bytes:
        decoder.batch.clear()
        rows = sorted({slot, 0 if slot else 1})
        ends = [80 if r == slot or r == 0 else 0 for r in rows]
        decoder.batch.add_rows([9] * 2, ends, rows)
        return decoder.decode()[rows.index(slot)].tobytes()

    def begin() -> None:
        decoder.clear()
        for slot, ids in enumerate(texts):
            compute(decoder, ids, slot=slot, outputs=2)
        decoder.truncate(1, 0)

    begin()
    expected = after(0)
    begin()
    decoder.copy(0, 2, 80)
    saved = decoder.save(2)  # before any decode
    decoder.truncate(2, 0)
    decoder.restore(2, saved)
    assert after(2) == expected

    begin()
    first = decoder.save(0)
    decoder.copy(0, 2, 80)
    decoder.truncate(2, 0)
    decoder.truncate(0, 0)
    compute(decoder, texts[1], outputs=2)
    decoder.copy(0, 2, 80)
    decoder.truncate(2, 0)
    decoder.restore(2, first)  # what was copied before must not come over it
    assert after(2) == expected
    give_back()


@pytest.mark.parametrize("model_file", ["q8_0"], indirect=True)
def test_a_state_that_cannot_forget_a_token_is_not_given_one_to_finish_copies(model: LlamaModel):
    decoder, give_back = model.lease(EngineSettings(slots=3, max_sequence_tokens=512))
    compute(decoder, np.arange(80, dtype=np.int32), outputs=0)
    decoder.partial = False
    try:
        assert decoder.save(0)
        decoder.copy(0, 2, 80)
        with pytest.raises(DecodeFailed, match="cannot be saved before copies"):
            decoder.save(0)
    finally:
        decoder.partial = True
        decoder.clear()
        give_back()
