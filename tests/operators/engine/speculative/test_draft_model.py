"""Drafts by a model on the fake decoder: the completions of decode=autoregressive, and a KV cache as its seats say."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import pytest

from operators.engine.backend.batch import BatchBuffer
from operators.engine.backend.fake import FakeDecoder, FakeModel
from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence
from operators.engine.strategies.speculative.draft_model import MOST_FAILURES, DraftModel
from operators.engine.strategies.speculative.strategy import FIRST_STEPS
from tests.operators.engine.fixtures import Bench, check_slots, prompts, shape
from tests.operators.engine.speculative.drafters import with_model
from tests.operators.engine.speculative.test_engine import SAMPLING, completions, rows_of
from tests.sets import often

pytestmark = pytest.mark.slow("decodes with two models in many companies")


class Other(FakeModel):
    """Draws most tokens otherwise than a FakeModel."""

    def lease(self, *args: Any, **kwargs: Any):
        decoder, back = super().lease(*args, **kwargs)
        decoder._table = np.roll(decoder._table, 1, axis=0)
        return decoder, back


class Drafting(Bench):
    """A bench whose rows are completed by drafts of a model; the seats of this are checked after every step."""

    def __init__(self, slots: int, draft: FakeModel | None = None, **values: Any) -> None:
        of_drafts = {key: values.pop(key) for key in ("adaptive", "draft_tokens") if key in values}
        super().__init__(shape(slots), **values)
        self.use(lambda decoder: with_model(draft or FakeModel(), self.settings, decoder, **of_drafts)[0])

    @property
    def drafter(self) -> DraftModel:
        found: DraftModel = self.worker.strategy._drafter  # type: ignore[attr-defined]
        return found

    def run(self, rows: Seq[Sequence]) -> dict[object, list[int]]:
        client = self.client()
        client.submit(rows)
        client.end()
        while self.scheduler.runnable:
            self.worker.step()
            check_slots(self.scheduler)
            check_seats(self.drafter, whole=len(self.steps.rows) % 7 == 0)
        return {row.handle: row.tokens for row in client.collect()}


def check_seats(drafter: DraftModel, *, whole: bool) -> None:
    """No row has two seats, and the KV cache has what the seats say: the fake can be asked."""
    seats = drafter._seats
    decoder = seats._decoder
    assert isinstance(decoder, FakeDecoder)
    assert seats._of == {seat.row: seat for seat in seats.all if seat.row is not None}
    again = FakeDecoder(decoder.shape)
    for seat in seats.all:
        assert seat.sure <= seat.length == decoder._length[seat.index]
        if whole and seat.length:
            again.batch.clear()
            computed = np.minimum(seats._lines[seat.index, : seat.length], seats._last_word)
            again.batch.add_spans([computed], [0], [seat.index], [1])
            again.decode()
            assert again._hashes[seat.index, seat.length] == decoder._hashes[seat.index, seat.length]


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("name", often(SAMPLING, "sampled"))
@pytest.mark.parametrize("draft", [FakeModel, Other])
def test_completions_are_those_of_autoregressive_whatever_is_drafted(name, draft):
    texts, params = prompts(16), SAMPLING[name]
    expected = rows_of(texts, params, stops=name == "no end")
    Bench(shape(4)).run(expected)
    for slots, values in [(1, {"draft_tokens": 5}), (4, {"draft_tokens": 3}), (4, {"preempt_every": 3}), (16, {})]:
        for adaptive in (True, False) if draft is FakeModel else (False,):
            rows = rows_of(texts, params, stops=name == "no end")
            bench = Drafting(slots, draft(), adaptive=adaptive, **values)
            bench.run([rows[i] for i in np.random.default_rng(slots).permutation(16)])
            assert completions(rows) == completions(expected), (slots, values)
            sums = bench.engine.totals()
            assert sums["draft_s"] == pytest.approx(sum(bench.column("draft_s")))
            assert adaptive or (sums["drafted_tokens"] > 0 and sums["draft_s"] > 0)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("slots", often([1, 4, 16], 4))
def test_the_same_model_drafts_every_token_of_a_greedy_row(slots):
    texts = prompts(16)
    bench = Drafting(slots, adaptive=False, draft_tokens=4)
    assert bench.run(rows_of(texts, SamplingParams())) == Bench(shape(4)).run(rows_of(texts, SamplingParams()))
    sums = bench.engine.totals()
    # A draft goes on behind the end of a completion that `max_tokens` does not foresee, and there is none here.
    assert sums["drafted_tokens"] == sums["accepted_tokens"] > 0
    assert bench.drafter._seats._of == {}


def test_a_draft_takes_as_many_calls_as_tokens_and_its_rows_bring_equally_many():
    calls: list[list[int]] = []

    def watch(batch: BatchBuffer) -> int:
        calls.append(np.bincount(batch.seq_id[: batch.n_tokens]).tolist())
        return 0

    bench = Drafting(4, FakeModel(watch), adaptive=False, draft_tokens=3)
    rows = rows_of(prompts(4, longest=5), SamplingParams())
    for row in rows:
        row.max_tokens = 100
    bench.run(rows)
    reading, drafts = 3, len([n for n in bench.column("drafted_tokens") if n])
    assert len(calls) - reading in (3 * drafts - 1, 3 * drafts)
    assert calls[reading + 1 : -2] == [[1] * 4 if i % 3 else [2] * 4 for i in range(1, len(calls) - reading - 2)]


def test_a_model_that_cannot_truncate_computes_a_wrong_draft_again_and_no_more(monkeypatch, caplog):
    """It goes back to where the draft began."""
    monkeypatch.setattr(FakeDecoder, "partial", False)
    monkeypatch.setattr(FakeDecoder, "rollback", 3)
    read: list[int] = []
    bench = Drafting(4, Other(lambda batch: read.append(batch.n_tokens) or 0), adaptive=False, draft_tokens=3)  # type: ignore[func-returns-value]
    texts = prompts(12)
    bench.run(rows_of(texts, SamplingParams()))
    assert bench.engine.totals()["accepted_tokens"] < bench.engine.totals()["drafted_tokens"] / 2
    drafts = sum(bench.column("decode_tokens"))
    assert sum(read) < sum(map(len, texts)) + 4 * drafts
    assert not [r for r in caplog.records if "the draft model failed" in r.getMessage()]


def test_a_short_job_has_nothing_of_a_draft_model():
    calls: list[int] = []
    bench = Drafting(4, FakeModel(lambda batch: calls.append(1) or 0))  # type: ignore[func-returns-value]
    bench.run(rows_of(prompts(12), SamplingParams()))
    assert len(bench.steps.rows) < FIRST_STEPS
    assert not calls


def test_each_row_is_drafted_for_as_far_as_it_needs():
    """No further: there may be no room."""
    rows: Any = rows_of(prompts(3), SamplingParams())
    assert [len(draft.tokens) for draft in Drafting(3).drafter.drafts(rows, [3, 0, 1])] == [3, 0, 1]


def test_a_prompt_that_begins_like_another_is_not_read_again():
    read = []
    head = np.random.default_rng(0).integers(0, 256, 100).astype(np.int32)
    texts = [np.append(head, tail).astype(np.int32) for tail in prompts(9, longest=8)]
    model = FakeModel(lambda batch: read.append(batch.n_tokens) or 0)  # type: ignore[func-returns-value]
    bench = Drafting(2, model, adaptive=False, draft_tokens=1)
    bench.run(rows_of(texts, SamplingParams()))
    assert len([tokens for tokens in read if tokens > 90]) == 1


def test_drafts_end_with_the_room_of_a_row():
    """Nothing is computed behind the last token that fits, by either model."""
    texts = [np.arange(length, dtype=np.int32) for length in (200, 240, 254, 255)]
    rows = rows_of(texts, SamplingParams())
    expected = rows_of(texts, SamplingParams())
    for row in (*rows, *expected):
        row.max_tokens = 256 - len(row.prompt)
    Bench(shape(4)).run(expected)
    Drafting(4, adaptive=False, draft_tokens=7).run(rows)
    assert completions(rows) == completions(expected)


def test_a_draft_model_that_fails_costs_the_drafts_alone(caplog):
    texts = prompts(8)
    expected = Bench(shape(4)).run(rows_of(texts, SamplingParams()))
    calls = iter(range(10**9))
    bench = Drafting(4, FakeModel(lambda _: -3 if next(calls) % 40 == 39 else 0), adaptive=False)
    assert bench.run(rows_of(texts, SamplingParams())) == expected
    assert bench.engine.totals()["accepted_tokens"] > 0
    broken = Drafting(4, FakeModel(lambda _: -3), adaptive=False)
    assert broken.run(rows_of(texts, SamplingParams())) == expected
    assert broken.engine.totals()["drafted_tokens"] == 0
    assert [r.getMessage() for r in caplog.records if "drafts no more" in r.getMessage()] != []
    assert len([r for r in caplog.records if "the draft model failed" in r.getMessage()]) < 60


def test_words_that_the_draft_model_has_not_are_no_failure():
    """Of padded vocabularies: the larger one has words that the other must not be asked to compute."""
    texts = [np.append(text, 300).astype(np.int32) for text in prompts(4)]
    seen: list[int] = []
    small = FakeModel(lambda batch: seen.append(int(batch.token[: batch.n_tokens].max())) or 0)  # type: ignore[func-returns-value]
    small.n_vocab = 280
    bench = Drafting(2, small, adaptive=False)
    assert bench.run(rows_of(texts, SamplingParams())) == Bench(shape(2)).run(rows_of(texts, SamplingParams()))
    assert max(seen) == 279


def test_a_row_that_was_dropped_leaves_its_seat_to_another():
    bench = Drafting(2, adaptive=False, draft_tokens=2)
    client = bench.client()
    rows = rows_of(prompts(2), SamplingParams())
    for row in rows:
        row.max_tokens = 100
    client.submit(rows)
    for _ in range(4):
        bench.worker.step()
    bench.engine.drop(client)
    assert len(bench.drafter._seats._of) == 2
    bench.run(rows_of(prompts(6), SamplingParams()))
    assert bench.drafter._seats._of == {}


@pytest.mark.parametrize("measured", [False, True])
def test_a_model_that_drafts_no_more_is_never_worth_it(measured):
    fails = [] if measured else [True]
    drafter = Drafting(2, FakeModel(lambda _: -3 if fails else 0)).drafter
    drafter.measure()
    assert drafter.is_measured is measured
    fails.append(True)
    for _ in range(MOST_FAILURES):
        drafter.measure()
    assert drafter.is_measured
    assert drafter.costs(rows_of(prompts(2), SamplingParams())).token_s[0] > 1e6  # type: ignore[arg-type]
