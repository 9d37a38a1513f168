"""Where a device leaves the likeliest words of each row's logits, every row draws what it draws from all of them."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from operators.engine.backend import fake
from operators.engine.backend.interface import Logits
from operators.engine.backend.keys import is_reduced
from operators.engine.backend.shape import CANDIDATES, DecoderShape
from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence
from operators.engine.strategies.autoregressive import Autoregressive
from operators.engine.strategies.base import DecodeSetup
from operators.engine.strategies.block_diffusion.denoise import BlockDiffusion
from operators.engine.strategies.block_diffusion.setup import BlockDiffusionSetup
from operators.engine.strategies.reducing import PATIENCE, ReducedCalls
from operators.engine.strategies.speculative.setup import SpeculativeSetup
from operators.engine.strategies.speculative.strategy import Speculative
from operators.settings import DecodeSettings, ModelSettings, SamplingSettings
from operators.settings.block_diffusion import BlockDiffusionSettings
from operators.settings.runtime import EngineSettings
from operators.settings.speculative import SpeculativeSettings
from pipeline import PROJECT
from pipeline.api.errors import ConfigError
from tests.operators.engine.fixtures import GREEDY, WARM, Bench, RecordingDecoder, prompts, shape
from tests.operators.engine.test_constrained import KINDS
from tests.operators.engine.test_constrained import params as constrained
from tests.operators.engine.test_recovery import some
from tests.sets import often

PENALISED = replace(WARM, repetition_penalty=1.3, bad_words=((101,), (102, 103)), min_tokens=4)
NUCLEUS = replace(WARM, top_k=0, top_p=0.8)
PARAMS: dict[str, list[SamplingParams]] = {
    "greedy": [GREEDY],
    "warm": [WARM, PENALISED, GREEDY],
    "some need all": [WARM, NUCLEUS, constrained(next(iter(KINDS)), temperature=1.3, top_k=20), GREEDY],
}


class WatchedDecoder(RecordingDecoder):
    """Notes of each call with outputs whether it was reduced."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reduced: list[bool] = []

    def decode(self) -> Logits:
        logits = super().decode()
        if len(logits):
            self.reduced.append(is_reduced(logits))
        return logits


@dataclass(frozen=True)
class Run:
    """Tokens of the rows by handle, whether each call was reduced, the number of steps, and what was counted."""

    made: dict[object, list[int]]
    reduced: list[bool]
    steps: int
    counts: ReducedCalls | None


def rows_of(kinds: Seq[SamplingParams]) -> list[Sequence]:
    """Rows with parameters in turn, each prompt three times."""
    texts = [text for text in prompts(16, longest=70) for _ in range(3)]
    return [Sequence(i, text, kinds[i % len(kinds)], seed=i, max_tokens=12) for i, text in enumerate(texts)]


def run(rows: Seq[Sequence], sizes: DecoderShape, every: int = 0) -> Run:
    """Complete `rows`; one in `every` calls fails."""
    bench = Bench(sizes)
    bench.decoder = decoder = WatchedDecoder(sizes, some(every, -3) if every else lambda batch: 0)
    bench.use(None)
    made = bench.run(rows)
    return Run(made, decoder.reduced, len(bench.steps.rows), next(iter(bench.worker.strategy.own_counts()), None))


def whole_and_reduced(params: str, slots: int = 5, every: int = 0, **sizes: Any) -> tuple[Run, Run]:
    """The same rows with all logits, and where the device may leave some."""
    kinds = PARAMS[params]
    whole = run(rows_of(kinds), shape(slots, **sizes))
    return whole, run(rows_of(kinds), shape(slots, candidates=CANDIDATES, **sizes), every)


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("slots", often((1, 2, 5, 16), 5))
def test_rows_get_the_tokens_that_they_get_from_all_words(params, slots):
    whole, reduced = whole_and_reduced(params, slots)
    assert reduced.made == whole.made
    assert whole.counts is None
    assert not any(whole.reduced)
    assert all(reduced.reduced) == (params != "some need all")
    assert reduced.counts == ReducedCalls(sum(reduced.reduced), 0)
    assert any(reduced.reduced)


@pytest.mark.parametrize("every", often((2, 3, 7), 3))
def test_calls_that_fail_are_made_again_in_parts(every):
    whole, reduced = whole_and_reduced("warm", every=every)
    assert reduced.made == whole.made


def test_a_device_that_cannot_reduce_costs_no_row():
    """The parts of its call, and some calls behind it, have all logits."""
    whole = run(rows_of([WARM]), shape(5))
    sizes = shape(5, candidates=CANDIDATES)
    bench, reduces = Bench(sizes), list[WatchedDecoder]()
    bench.decoder = decoder = WatchedDecoder(sizes, lambda batch: -3 if reduces[0].reduces else 0)
    reduces.append(decoder)
    bench.use(None)
    assert bench.run(rows_of([WARM])) == whole.made
    assert not any(decoder.reduced)


@pytest.mark.parametrize("sizes", [{}, {"per_sequence": False, "deterministic": False}], ids=["", "unified"])
def test_a_call_whose_words_are_equally_likely_is_made_again_with_all_logits(monkeypatch, sizes):
    """The model has one logit for most words after some texts. No token is lost or counted twice: the Bench checks that
    after every step."""
    table = fake._logit_table()
    table[::7] = np.minimum(table[::7], -9.0)
    monkeypatch.setattr(fake, "_logit_table", lambda: table)
    whole, reduced = whole_and_reduced("warm", **sizes)
    assert reduced.made == whole.made
    assert reduced.steps == whole.steps
    assert reduced.counts is not None
    assert reduced.counts.calls_repeated > 0


def test_after_a_row_that_needs_all_logits_some_calls_have_them_too():
    """To change costs as much as some steps."""
    endless = replace(GREEDY, stop_ids=frozenset())
    kinds = [endless, replace(endless, logprobs=0), endless]
    rows = [Sequence(i, np.arange(5, dtype=np.int32) + i, kind, i, max_tokens=40) for i, kind in enumerate(kinds)]
    made = run(rows, shape(1, candidates=CANDIDATES)).reduced
    assert made == [True] * 40 + [False] * (40 + PATIENCE) + [True] * (40 - PATIENCE)


USUAL = DecodeSetup(DecodeSettings(), Autoregressive)
REFUSED: dict[str, tuple[DecodeSetup, dict[str, Any], dict[str, Any], str]] = {
    "decode=block_diffusion": (BlockDiffusionSetup(BlockDiffusionSettings(), BlockDiffusion), {}, {}, "qwen3"),
    "decode=speculative": (SpeculativeSetup(SpeculativeSettings(), Speculative), {}, {}, "qwen3"),
    "recurrent layers": (USUAL, {}, {}, "qwen3_5"),
    "runtime.window_cache=small": (USUAL, {}, {"window_cache": "small"}, "gemma3"),
    "sampling.logprobs=2": (USUAL, {"logprobs": 2}, {}, "qwen3"),
    "without sampling.top_k": (USUAL, {"temperature": 0.8, "top_k": 0}, {}, "qwen3"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_can_never_be_reduced_is_refused_where_it_was_asked_for(reason):
    setup, sampling, engine, family = REFUSED[reason]
    model = ModelSettings(path=str(PROJECT / f"tests/families/{family}.gguf"))
    given = SamplingSettings(**sampling), EngineSettings(**engine), model
    setup.check_device_sampling(*given)
    asked = replace(given[1], device_sampling=True)
    with pytest.raises(ConfigError, match="device_sampling=true cannot work: ") as refused:
        setup.check_device_sampling(given[0], asked, model)
    assert reason in str(refused.value)


def test_what_rows_may_choose_is_left_to_them():
    model = ModelSettings(path=str(PROJECT / "tests/families/qwen3.gguf"))
    USUAL.check_device_sampling(SamplingSettings(), EngineSettings(device_sampling=True), model)
    columns = SamplingSettings(top_k=0, temperature=1.0, per_row=["top_k"])
    USUAL.check_device_sampling(columns, EngineSettings(device_sampling=True), model)
