"""States of recurrent layers that a context keeps or saves: their size, and that no trace of a draft is left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.interface import Decoder
from operators.engine.strategies.speculative.setup import SpeculativeSetup
from operators.engine.strategies.speculative.strategy import Speculative
from operators.generation.memory import draft_memory, model_memory
from operators.llama import model as llama_model
from operators.llama.header import read_header
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from operators.settings.speculative import SpeculativeSettings
from tests.families.drafted import DRAFTED, RECURRENT, opened
from tests.families.test_families import HERE
from tests.operators.llama.test_decoding import MOST_DRAFTED, compute, texts

pytestmark = pytest.mark.slow("decodes with a model of each family with recurrent layers")

PROMPT, TEXT, WRONG = (np.random.default_rng(i).integers(0, 250, 40).astype(np.int32) for i in range(3))


@pytest.mark.parametrize("family", RECURRENT)
def test_a_state_has_the_size_that_is_said_and_is_kept_where_that_is_said(family, monkeypatch):
    """If llama.cpp is asked to keep states of any architecture, it does of those that are named, and of no other."""
    path, draft = HERE / f"{family}.gguf", 3
    header = read_header(path)
    monkeypatch.setattr(llama_model, "ROLLS_BACK", {header.architecture})
    model = opened(path)
    decoder, _ = model.lease(EngineSettings(slots=2, max_sequence_tokens=256), draft=draft)
    assert decoder.rollback == (draft if family in DRAFTED else 0)
    compute(decoder, texts(1)[0])
    assert 0 <= len(decoder.mark(0)) - header.state_bytes < 1024  # and some numbers for each layer
    model.close()


@pytest.mark.parametrize("family", DRAFTED)
def test_the_states_are_in_the_plan(family):
    settings, runtime = ModelSettings(path=str(HERE / f"{family}.gguf")), EngineSettings(slots=3)

    def size(draft: int) -> int:
        *_, context, _ = model_memory(settings, runtime, "key", draft=draft)
        return context.size_bytes - 4 * runtime.slots * (1 + draft) * read_header(HERE / f"{family}.gguf").n_vocab

    state = read_header(HERE / f"{family}.gguf").state_bytes
    assert size(5) - size(0) == 5 * runtime.slots * state > 0
    setup = SpeculativeSetup(SpeculativeSettings(draft={"model": settings.path}), Speculative)
    assert draft_memory(setup, settings, runtime, "key")[-1].size_bytes == runtime.slots * state


@pytest.mark.parametrize("family", RECURRENT)
def test_what_was_marked_comes_back(family):
    """After calls of any number of tokens, in a context that keeps no states, beside a row that goes on."""
    model = opened(HERE / f"{family}.gguf")
    decoder, _ = model.lease(EngineSettings(slots=3, max_sequence_tokens=256, threads=1))
    for slot, prompt in enumerate((WRONG, PROMPT)):
        compute(decoder, prompt, slot=slot)
    mark = decoder.mark(1)
    expected = after(decoder, 1, 0)
    compute(decoder, TEXT[:5], len(PROMPT), 0)
    compute(decoder, WRONG[:3], len(PROMPT) + 1, 1)
    compute(decoder, WRONG[3:4], len(PROMPT) + 4, 1)
    decoder.rewind(1, len(PROMPT), mark)
    assert after(decoder, 1, 0) == expected
    model.close()


@pytest.fixture
def decoder(model) -> Iterator[Decoder]:
    found, give_back = model.lease(EngineSettings(slots=3, max_sequence_tokens=256, threads=1), draft=MOST_DRAFTED)
    yield found
    give_back()


def after(decoder: Decoder, slot: int, length: int) -> bytes:
    """The logits of the next token of TEXT in `slot`, which has so many of it; beside a row, as one alone differs."""
    decoder.batch.clear()
    places = sorted([(slot, len(PROMPT) + length), (2, 0)])
    decoder.batch.add_spans(
        [TEXT[length : length + 1]] * 2, [at for _, at in places], [each for each, _ in places], [1, 1]
    )
    line: bytes = decoder.decode()[0].tobytes()
    decoder.truncate(2, 0)
    return line


@pytest.mark.parametrize("dropped", range(MOST_DRAFTED + 1))
def test_what_went_back_is_as_if_it_had_never_drafted(decoder, dropped):
    """Also when it is copied into a slot that had gone back itself, or saved, before the next call."""
    right = MOST_DRAFTED + 1 - dropped
    compute(decoder, PROMPT)
    for i in range(right):
        expected = after(decoder, 0, i)
    expected = after(decoder, 0, right)

    def drafted(slot: int, right: int = right) -> None:
        decoder.truncate(slot, 0)
        compute(decoder, PROMPT, slot=slot)
        compute(decoder, np.concatenate([TEXT[:right], WRONG])[: MOST_DRAFTED + 1], len(PROMPT), slot)
        decoder.truncate(slot, len(PROMPT) + right)

    drafted(0)
    saved = bytes(decoder.save(0))
    assert after(decoder, 0, right) == expected
    drafted(0, 2 if right == 3 else 3)
    drafted(1)
    decoder.copy(1, 0, len(PROMPT) + right)
    assert after(decoder, 0, right) == expected
    drafted(1)
    decoder.truncate(1, 0)
    decoder.restore(1, saved)
    assert after(decoder, 1, right) == expected


def test_what_llama_would_do_wrongly_is_refused(decoder):
    """It goes back to a state of an older call without a word."""
    length = len(PROMPT) + 8
    compute(decoder, PROMPT)
    compute(decoder, TEXT[:8], len(PROMPT))
    compute(decoder, TEXT[8:10], length)
    with pytest.raises(DecodeFailed, match="cannot cut what it has in slot 0"):
        decoder.truncate(0, length)
    decoder.truncate(0, length + 1)
    decoder.truncate(0, 0)
