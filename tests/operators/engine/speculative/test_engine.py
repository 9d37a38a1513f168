"""Speculative decoding on the fake decoder: the completions of decode=autoregressive, whatever is drafted."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import partial
from typing import Any

import numpy as np
import pytest

from operators.engine.backend.batch import BatchBuffer
from operators.engine.backend.fake import END_ID, FakeDecoder
from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence, StopWatcher
from operators.engine.sequence.placement import NodeQueue
from operators.engine.strategies.speculative.draft_length import EXPLORATION_SHARE, OVERHEAD_SHARE, DraftLength
from operators.engine.strategies.speculative.lookup import MOST_TOKENS, DraftedRow, PromptLookup
from pipeline.api.meter import StageMeter
from tests.operators.engine.fixtures import GREEDY, WARM, Bench, prompts, shape
from tests.operators.engine.speculative.drafters import Oracle, speculative
from tests.operators.engine.test_constrained import params as constrained
from tests.operators.rows.schemas import PERSON
from tests.sets import often

pytestmark = pytest.mark.slow("drafts for thousands of random rows")

STOPS = frozenset({END_ID})
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "dry_multiplier": 0.8}
SAMPLING = {
    "greedy": GREEDY,
    "sampled": WARM,
    "penalties": SamplingParams(temperature=0.8, stop_ids=STOPS, dry_allowed_length=1, **PENALTIES),
    "logprobs": SamplingParams(temperature=1.2, top_p=0.9, logprobs=2, stop_ids=STOPS, min_tokens=4, end_ids=STOPS),
    "mirostat": SamplingParams(temperature=1.0, mirostat=2, stop_ids=STOPS),
    "no end": SamplingParams(temperature=1.0),
    "constraint": constrained({"json_schema": PERSON}, temperature=1.0),
}
PIECES = [bytes([i % 256]) for i in range(320)]


class Drafting(Bench):
    """A bench whose rows are completed by drafts."""

    def __init__(self, slots: int, drafter: PromptLookup | None = None, **values: Any) -> None:
        strategy_values = {key: values.pop(key) for key in ("adaptive", "draft_tokens", "clock") if key in values}
        super().__init__(shape(slots), **values)
        self.use(partial(speculative, drafter, **strategy_values))


NODE = NodeQueue(StageMeter("node"), 1, 1000, lambda: None)


def rows_of(texts: Seq[np.ndarray], params: SamplingParams, stops: bool = False) -> list[Sequence]:
    watch = [StopWatcher([b"ab", b"e", b"Q"], PIECES, keep=bool(i % 2)) if stops else None for i in range(len(texts))]
    made = enumerate(zip(texts, watch, strict=True))
    return [DraftedRow(i, t, params, seed=1000 + i, max_tokens=5 + 3 * (i % 12), stops=w) for i, (t, w) in made]


def long_rows(texts: Seq[np.ndarray]) -> list[Sequence]:
    return [DraftedRow(i, text, SamplingParams(), seed=i, max_tokens=200) for i, text in enumerate(texts)]


def drafted(prompt: Seq[int] | np.ndarray) -> DraftedRow:
    """A greedy row of the one node."""
    row = DraftedRow(0, np.asarray(prompt, np.int32), GREEDY, seed=0, max_tokens=9)
    row.owner = NODE
    return row


def completions(rows: Seq[Sequence]) -> dict[object, tuple[Any, ...]]:
    return {r.handle: (r.tokens, r.finish_reason, r.error, r.fits, r.sampling.scores, r.dropped) for r in rows}


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("name", often(SAMPLING, "sampled", "penalties", "constraint"))
@pytest.mark.parametrize("right", often([0.0, 0.8], 0.8))
def test_completions_are_those_of_autoregressive_whatever_is_drafted(name, right):
    texts, params = prompts(16), SAMPLING[name]
    expected = rows_of(texts, params, stops=name == "no end")
    truth = Bench(shape(4)).run(expected)
    for slots, values in [(1, {"draft_tokens": 5}), (4, {"draft_tokens": 3}), (4, {"preempt_every": 3}), (16, {})]:
        for adaptive in (True, False):
            rows = rows_of(texts, params, stops=name == "no end")
            bench = Drafting(slots, Oracle(truth, right), adaptive=adaptive, **values)
            bench.run([rows[i] for i in np.random.default_rng(slots).permutation(16)])
            assert completions(rows) == completions(expected), (slots, values)
            for kind in ("drafted", "accepted"):
                counted = sum(getattr(row, kind) for row in rows)
                assert bench.engine.totals()[f"{kind}_tokens"] == counted == sum(bench.column(f"{kind}_tokens"))
            assert adaptive or bench.engine.totals()["drafted_tokens"] > 0


def test_right_drafts_save_steps_and_wrong_ones_cost_none():
    texts = prompts(8)
    expected = Bench(shape(2))
    truth = expected.run(rows_of(texts, SamplingParams()))
    steps = {}
    for right in (0.0, 1.0):
        bench = Drafting(2, Oracle(truth, right), adaptive=False, draft_tokens=4)
        assert bench.run(rows_of(texts, SamplingParams())) == truth
        steps[right] = len([n for n in bench.column("decode_tokens") if n])
    plain = len([n for n in expected.column("decode_tokens") if n])
    assert steps[0.0] == plain
    assert steps[1.0] < plain / 3


class Scripted:
    """A clock of seconds that stands still but for calls of `decoder`, and for `python_s` whenever it is read."""

    def __init__(self, python_s: float) -> None:
        self.now, self.python_s = 0.0, python_s

    def __call__(self) -> float:
        self.now += self.python_s
        return self.now

    def call(self, batch: BatchBuffer) -> int:
        self.now += 0.2e-3 + 0.01e-3 * batch.n_tokens
        return 0


def test_where_steps_are_quick_drafts_begin_soon_if_they_are_right_and_cost_little_if_not(monkeypatch):
    """As with a small model at one slot: a call takes 0.2 ms, and a choice as much."""
    texts = [np.resize(text, 40).astype(np.int32) for text in prompts(12)]
    truth = Bench(shape(1)).run(long_rows(texts))

    def seconds(right: float) -> tuple[float, list[int]]:
        clock = Scripted(0.2e-3)
        bench = Drafting(1, Oracle(truth, right), clock=clock)
        bench.decoder._fail = clock.call
        assert bench.run(long_rows(texts)) == truth
        return clock.now, [step for step, tokens in enumerate(bench.column("drafted_tokens")) if tokens]

    (well, drafted), (badly, _) = seconds(0.9), seconds(0.0)
    monkeypatch.setattr(DraftLength, "skips", lambda *_: True)
    never, none = seconds(0.9)
    assert not none
    assert drafted[0] < 400
    assert well < never / 1.4
    assert badly < never * (1 + EXPLORATION_SHARE + OVERHEAD_SHARE)


def test_forced_tokens_are_computed_together():
    """A forced token is a draft that is always right: fewer steps, though nothing is drafted."""
    texts, params = prompts(6), constrained({"json_schema": PERSON})
    plain, bench = Bench(shape(2)), Drafting(2, Oracle({i: [] for i in range(6)}, 1.0), adaptive=False)
    assert bench.run(rows_of(texts, params)) == plain.run(rows_of(texts, params))
    assert len(bench.steps.rows) < len(plain.steps.rows)


def test_a_failing_call_costs_the_guilty_row_alone():
    texts = prompts(6)
    truth = Bench(shape(3)).run(rows_of(texts, SamplingParams()))
    bench = Drafting(3, Oracle(truth, 1.0), adaptive=False)
    guilty = 2
    drafted = FakeDecoder(shape(3), fail=lambda batch: -3 if 77_777 in batch.token[: batch.n_tokens] else 0)
    assert drafted.shape == bench.decoder.shape
    bench.decoder._fail = drafted._fail
    truth[guilty] = [*truth[guilty][:2], 77_777, *truth[guilty][3:]]
    rows = rows_of(texts, SamplingParams())
    assert {i: t for i, t in bench.run(rows).items() if i != guilty} == {i: t for i, t in truth.items() if i != guilty}


@pytest.mark.parametrize("slots", [1, 4])
def test_a_row_whose_drafts_cannot_be_computed_goes_on_without_them(slots):
    """Every call with a draft fails, in each of its steps; what is tried again has its dummy token, and no draft."""
    texts = [text[:2] for text in prompts(6) if len(text) > 1][:1]
    truth = Bench(shape(slots)).run(long_rows(texts))
    bench, sizes = Drafting(slots, Oracle(truth, 1.0), adaptive=False), list[int]()

    def no_drafts(batch: BatchBuffer) -> int:
        sizes.append(batch.n_tokens)
        return -3 if batch.n_tokens > 2 else 0

    bench.decoder._fail = no_drafts
    assert bench.run(long_rows(texts)) == truth
    assert set(sizes) > {2} == {size for size in sizes if size <= 2}


def test_what_was_said_before_is_found():
    lookup, row = PromptLookup(), drafted([1, 2, 3, 4, 5, 9, 2, 3])
    [draft] = lookup.drafts([row], [3])
    assert draft == ([4, 5, 9], ("own", 2))
    row.tokens += [4, 5]
    assert lookup.drafts([row], [2])[0] == ([9, 2], ("own", 3))
    assert lookup.drafts([row], [0])[0].tokens == ()
    row.tokens.append(8)
    assert lookup.drafts([row], [2])[0].tokens == ()
    other = drafted([6, 7])
    other.tokens += [8, 50, 60]
    lookup.drafts([other], [1])
    assert other.text
    lookup.ended(other)
    assert not other.text
    assert lookup.drafts([row], [2])[0] == ([50, 60], ("others", 1))


@pytest.mark.parametrize("period", [1, 2, 5])
def test_what_repeats_itself_goes_on_as_it_did(period):
    text = np.resize(np.arange(0xD7FE, 0xD7FE + period, dtype=np.int32), 12)  # tokens like halves of a UTF-16 pair, too
    row = drafted(text[:-1])
    [draft] = PromptLookup().drafts([row], [7])
    assert draft.tokens == np.resize(np.roll(text[:period], -11), 7).tolist()


def test_only_the_latest_completions_are_remembered():
    lookup = PromptLookup()
    for first in range(0, 3 * MOST_TOKENS, 100):
        row = drafted([9])
        row.tokens += range(first, first + 100)
        lookup.ended(row)
    early, late = (drafted([token]) for token in (MOST_TOKENS, 3 * MOST_TOKENS - 200))
    assert [len(draft.tokens) for draft in lookup.drafts([early, late], [7, 7])] == [0, 7]
