"""Calls into llama.cpp that fail or are aborted: the neighbours keep every bit, and the context can be used again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.interface import Logits
from operators.engine.sampling.params import SamplingParams
from operators.llama.contexts.context import LlamaContext
from operators.llama.model import LlamaModel
from operators.settings.runtime import EngineSettings
from tests.operators.llama.test_decoding import complete, compute, model, model_file, texts

__all__ = ["model", "model_file"]

GREEDY = SamplingParams()
pytestmark = pytest.mark.parametrize("model_file", ["q8_0"], indirect=True)


class FailingModel:
    """Leases contexts whose calls fail when `fails` says so of the tokens, after they were computed."""

    def __init__(self, model: LlamaModel, fails: Callable[[LlamaContext], bool], code: int) -> None:
        self._model, self._fails, self._code = model, fails, code
        self.n_ctx_train = model.n_ctx_train

    def lease(self, settings: EngineSettings, *, draft: int = 0) -> tuple[Any, Callable[[], None]]:
        context, give_back = self._model.lease(settings, draft=draft)
        decode = context.decode

        def failing() -> Logits:
            if not self._fails(context):
                return decode()
            decode()
            raise DecodeFailed(self._code, "made to fail")

        context.decode = failing  # type: ignore[method-assign]

        def back() -> None:
            del context.decode
            give_back()

        return context, back


@pytest.mark.parametrize("every", [2, 5])
def test_calls_that_fail_for_no_reason_change_no_bit(model, every):
    prompts = texts(25)
    calls = iter(range(1, 10**9))
    failing: Any = FailingModel(model, lambda context: next(calls) % every == 0, -3)
    assert complete(failing, prompts, range(25), GREEDY, slots=5) == complete(
        model, prompts, range(25), GREEDY, slots=5
    )


def test_a_row_that_is_tried_alone_again_keeps_its_bits_behind_the_depth_where_llama_cpp_changes_kernels(model):
    """Deeper than 512 cells; the step is cut in halves of one row each."""
    prompts = [np.random.default_rng(i).integers(0, 300, 600 + i).astype(np.int32) for i in range(3)]
    failing: Any = FailingModel(
        model, lambda context: int(context.batch.output[: context.batch.n_tokens].sum()) > 2, -3
    )
    assert complete(failing, prompts, range(3), GREEDY, 6, slots=3) == complete(
        model, prompts, range(3), GREEDY, 6, slots=3
    )


def test_llama_cpp_fills_every_hole_of_a_unified_cache(model):
    """So no room is no room, however it lies, and KvBudget may keep in mind what it has learnt of it."""
    slots, each = 8, 64
    sizes: dict[str, Any] = {"kv": "unified", "deterministic": False, "n_ctx": slots * each, "n_batch": 512}
    decoder, give_back = model.lease(EngineSettings(slots=slots, max_sequence_tokens=512, **sizes))
    for position in range(each):
        decoder.batch.clear()
        decoder.batch.add_rows([7] * slots, [position] * slots, list(range(slots)))
        decoder.decode()
    for slot in range(1, slots, 2):
        decoder.truncate(slot, 0)
    room = slots // 2 * each
    compute(decoder, np.zeros(room, np.int32), slot=1, outputs=0)
    with pytest.raises(DecodeFailed) as failure:
        compute(decoder, np.zeros(1, np.int32), room, slot=1, outputs=0)
    assert failure.value.code == 1
    give_back()


def test_a_state_that_cannot_be_cut_is_neither_cut_nor_copied_in_part(model, monkeypatch):
    """As in recurrent models: what llama.cpp has refused may not pass for done."""
    decoder, give_back = model.lease(EngineSettings(slots=2))
    compute(decoder, np.arange(9, dtype=np.int32), outputs=2)
    monkeypatch.setattr(decoder, "partial", False)
    with pytest.raises(DecodeFailed, match="slot 0 has a state after 9 tokens, and none after 5"):
        decoder.copy(0, 1, 5)
    decoder.copy(0, 1, 9)
    monkeypatch.setattr("llama_cpp.llama_memory_seq_rm", lambda *_: False)
    with pytest.raises(DecodeFailed, match="cannot cut what it has in slot 0 to 5 tokens"):
        decoder.truncate(0, 5)
    give_back()


def test_a_set_flag_aborts_every_call_until_the_next_lease(model):
    settings = EngineSettings(slots=2)
    decoder, give_back = model.lease(settings)
    ids = np.arange(200, dtype=np.int32)
    whole = compute(decoder, ids).copy()
    model.abort()
    for _ in range(2):
        decoder.clear()
        with pytest.raises(DecodeFailed, match="it was aborted") as failure:
            compute(decoder, ids)
        assert failure.value.code == 2
    give_back()
    decoder, give_back = model.lease(settings)
    assert np.array_equal(compute(decoder, ids), whole)
    give_back()


def test_a_long_call_ends_when_it_is_aborted(model):
    """From another thread, and in the middle: 2,000 calls' worth of tokens would take seconds."""
    decoder, give_back = model.lease(EngineSettings(slots=2, n_batch=2048, n_ubatch=2048, max_sequence_tokens=2048))
    began, failures = threading.Event(), []

    def call_on() -> None:
        try:
            while True:
                decoder.clear()
                began.set()
                compute(decoder, np.zeros(2048, np.int32))
        except DecodeFailed as failure:
            failures.append(failure.code)

    thread = threading.Thread(target=call_on)
    thread.start()
    began.wait()
    model.abort()
    thread.join()
    assert failures == [2]
    give_back()


def test_real_exhaustion_of_the_kv_cache_costs_no_row(model):
    """The scheduler believes in twice the cells that there are: llama.cpp says that there is no room."""
    prompts = texts(19)[:9]
    whole, _ = complete(model, prompts, range(9), GREEDY, 40, slots=9)
    sizes: dict[str, Any] = {"kv": "unified", "deterministic": False}

    class Exhausted:
        n_ctx_train = model.n_ctx_train

        def lease(self, settings: EngineSettings, *, draft: int = 0) -> tuple[Any, Callable[[], None]]:
            context, give_back = model.lease(EngineSettings(slots=9, max_sequence_tokens=1024, n_ctx=1024, **sizes))
            context.shape = type(context.shape)(**(vars(context.shape) | {"n_ctx": 9 * 1024}))
            return context, give_back

    exhausted: Any = Exhausted()
    made, _ = complete(exhausted, prompts, range(9), GREEDY, 40, slots=9, **sizes)
    assert {i: len(ids) for i, ids in made.items()} == {i: len(ids) for i, ids in whole.items()}
