"""A call that fails costs the row whose fault it is, and no other a bit of its text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from operators.engine.backend.batch import BatchBuffer, DecodeFailed
from operators.engine.backend.fake import FakeDecoder
from operators.engine.backend.shape import DecoderShape
from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence
from tests.operators.engine.fixtures import GREEDY, WARM, Bench, RecordingDecoder, prompts, sequences, shape
from tests.sets import often

pytestmark = pytest.mark.slow("makes calls fail in thousands of random orders")

POISON = 300
CODES = [1, 2, -1, -3]
Fail = Callable[[BatchBuffer], int]


def bench_failing(sizes: DecoderShape, fail: Fail, **settings: Any) -> Bench:
    """A Bench whose decoder fails."""
    bench = Bench(sizes, **settings)
    bench.decoder = RecordingDecoder(sizes, fail)
    bench.use(None)
    return bench


def poisoned(code: int) -> Fail:
    """Fails for every call that has the token POISON."""
    return lambda batch: code if POISON in batch.token[: batch.n_tokens] else 0


def deep(code: int) -> Fail:
    """Fails for every call with a token at position 200 or behind it."""
    return lambda batch: code if (batch.pos[: batch.n_tokens] >= 200).any() else 0


def some(every: int, code: int) -> Fail:
    """Fails every so many calls, whatever is in them."""
    calls = iter(range(1, 1_000_000))
    return lambda batch: code if next(calls) % every == 0 else 0


@pytest.mark.parametrize("code", often(CODES, 1, -3))
@pytest.mark.parametrize("params", often([GREEDY, WARM], WARM), ids=["greedy", "warm"])
def test_a_poisoned_prompt_is_refused_alone(code, params):
    texts = prompts(30)
    guilty = {3, 4, 17}
    poison = [np.append(t, POISON).astype(np.int32) if i in guilty else t for i, t in enumerate(texts)]
    rows = sequences(poison, params)
    bench = bench_failing(shape(6), poisoned(code))
    made = bench.run(rows)
    whole = Bench(shape(6)).run(sequences(texts, params))
    assert {i: made[i] for i in made if i not in guilty} == {i: whole[i] for i in whole if i not in guilty}
    assert {row.handle for row in rows if row.error is not None} == guilty
    assert all(f"fails with {code}" in (rows[i].error or "") for i in guilty)
    assert bench.scheduler.counts.failed_calls > len(guilty)


@pytest.mark.parametrize("code", often(CODES, 1, -3))
@pytest.mark.parametrize("slots", often([1, 2, 3, 8], 1, 3))
def test_a_row_that_fails_in_a_decode_step_is_refused_alone(code, slots):
    """The long row fails once it is 200 tokens deep, in the middle of its completion."""
    texts = [*prompts(20), np.arange(190, dtype=np.int32)]
    endless = SamplingParams()
    short, long = sequences(texts[:-1]), Sequence("long", texts[-1], endless, seed=1, max_tokens=60)
    bench = bench_failing(shape(slots), deep(code))
    made = bench.run([*short, long])
    whole = Bench(shape(slots)).run(sequences(texts[:-1]))
    assert {i: made[i] for i in whole} == whole
    assert "not even alone" in (long.error or "")
    assert len(long.tokens) == 11  # of the ten that were fed the last gave one more
    assert not any(row.error for row in short)


@pytest.mark.parametrize("slots", often([1, 2, 3, 8], 3))
def test_rows_that_begin_like_a_refused_one_take_nothing_from_its_slot(slots):
    """There is nothing in it any more: two tokens of no meaning were computed there, and forgotten."""
    head = np.arange(190, dtype=np.int32)
    texts = [head, *(np.append(head[:120], tail) for tail in prompts(20, longest=50)), head[:126]]
    rows = sequences(texts, SamplingParams(), max_tokens=20)
    bench = bench_failing(shape(slots), deep(-3))
    made = bench.run(rows)
    whole = Bench(shape(slots)).run(sequences(texts, SamplingParams(), max_tokens=20))
    assert [row.handle for row in rows if row.error] == [0]
    assert {**made, 0: []} == {**whole, 0: []}
    assert bench.scheduler.counts.shared_tokens


@pytest.mark.parametrize("code", often(CODES, 1, -3))
@pytest.mark.parametrize("every", often([2, 3, 7], 2, 7))
def test_failures_that_pass_cost_no_row(code, every):
    texts = prompts(40)
    rows = sequences(texts, WARM)
    bench = bench_failing(shape(6), some(every, code))
    assert bench.run(rows) == Bench(shape(6)).run(sequences(texts, WARM))
    assert not any(row.error for row in rows)


def test_a_lone_row_that_is_tried_again_has_a_dummy_token_beside_it():
    """The backend would compute it with other kernels: its call has a token in the next slot."""
    sizes: list[int] = []

    def small_only(batch: BatchBuffer) -> int:
        sizes.append(batch.n_tokens)
        return -3 if batch.n_tokens > 2 else 0

    texts = [t[:2] for t in prompts(20) if len(t) > 1]
    rows = sequences(texts)
    assert bench_failing(shape(4), small_only).run(rows) == Bench(shape(4)).run(sequences(texts))
    assert min(sizes) == 2


def test_where_there_is_no_room_the_youngest_waits():
    """The engine is told of more room than there is: it finds out by code 1."""
    texts = prompts(12, longest=40)
    sizes = shape(8, per_sequence=False, deterministic=False, n_ctx=4000)
    rows = sequences(texts, SamplingParams(), max_tokens=60)
    bench = bench_failing(sizes, lambda batch: 0)
    bench.decoder.shape = shape(8, per_sequence=False, deterministic=False, n_ctx=300)
    assert bench.run(rows) == Bench(shape(8)).run(sequences(texts, SamplingParams(), max_tokens=60))
    assert bench.scheduler.counts.preempted > 0
    assert not any(row.error for row in rows)


def test_a_row_may_be_longer_alone_than_the_room_that_was_found_for_several():
    """Several fill not quite 300 cells, so that less is thought to be there; the last one needs 299, and is alone."""
    sizes = shape(8, per_sequence=False, deterministic=False, n_ctx=4000, max_sequence_tokens=400)
    short = sequences(prompts(8, longest=40), SamplingParams(), max_tokens=60)
    long = Sequence("long", np.arange(299, dtype=np.int32) % 256, SamplingParams(), seed=1, max_tokens=1, chunk=2)
    bench = bench_failing(sizes, lambda batch: 0)
    bench.decoder.shape = shape(8, per_sequence=False, deterministic=False, n_ctx=300)
    bench.run([*short, long])
    assert bench.scheduler.counts.preempted > 0
    assert not any(row.error for row in [*short, long])
    assert len(long.tokens) == 1


def test_a_backend_that_fails_for_all_ends_the_run():
    calls = iter(range(1000))
    bench = bench_failing(shape(4), lambda batch: -3 if next(calls) > 20 else 0)
    rows = sequences(prompts(40))
    with pytest.raises(DecodeFailed, match="-3"):
        bench.run(rows)
    assert not any(row.error for row in rows)


def test_two_rows_that_only_fail_together_do_not_go_on_for_ever():
    """And any single row may be computed."""
    bench = bench_failing(shape(2), lambda batch: -3 if len(set(batch.seq_id[: batch.n_tokens].tolist())) > 1 else 0)
    texts = [np.arange(70, dtype=np.int32) + i for i in range(2)]
    with pytest.raises(DecodeFailed, match="-3"):
        bench.run(sequences(texts, SamplingParams()))


def test_what_cannot_be_forgotten_ends_the_run(monkeypatch):
    """A recurrent model has no end that could be cut off."""
    monkeypatch.setattr(FakeDecoder, "partial", False)
    bench = bench_failing(shape(4), some(5, -3))
    with pytest.raises(DecodeFailed, match="-3"):
        bench.run(sequences(prompts(40)))


def test_an_aborted_call_is_not_made_again_when_the_run_stops():
    bench = bench_failing(shape(4), some(5, 2))
    recovery = bench.worker._recovery
    recovery._stopping = lambda: True
    with pytest.raises(DecodeFailed, match="2"):
        bench.run(sequences(prompts(40)))


def test_a_row_that_takes_too_long_is_refused():
    bench = Bench(shape(4), row_timeout_s=100.0)
    now = iter(range(1_000_000))
    bench.worker.log.clock = lambda: float(next(now))
    texts = prompts(10)
    rows = [Sequence(i, t, SamplingParams(), seed=i, max_tokens=100 if i == 2 else 1) for i, t in enumerate(texts)]
    bench.run(rows)
    assert [row.handle for row in rows if row.error is not None] == [2]
    assert "longer than runtime.row_timeout_s=100" in (rows[2].error or "")


def seconds(bench: Bench) -> Bench:
    """`bench` with a clock that says how many calls were made."""
    bench.worker.log.clock = lambda: float(len(bench.decoder.calls))
    return bench


def test_the_time_without_a_slot_does_not_count():
    bench = seconds(Bench(shape(4), row_timeout_s=35.0, preempt_every=1))
    rows = [Sequence(i, t, SamplingParams(), seed=i, max_tokens=12) for i, t in enumerate(prompts(20, longest=20))]
    bench.run(rows)
    assert max(row.times.finished - row.times.admitted for row in rows if row.placement.preemptions) > 35
    assert not any(row.error for row in rows)


def test_a_row_that_only_waits_for_a_prefix_is_refused_too():
    """Its neighbour computes 2,000 tokens, 128 a call."""
    bench = seconds(Bench(shape(2, max_sequence_tokens=2200), row_timeout_s=5.0))
    text = np.arange(2000, dtype=np.int32) % 256
    rows = sequences([text, np.append(text[:-100], np.arange(90, dtype=np.int32))])
    client = bench.client()
    client.submit(rows)
    for _ in range(8):
        bench.worker.step()
    assert len(bench.decoder.calls) < 12  # of 16
    assert len(client.collect()) == 2
    assert all("row_timeout_s=5 and had 0 tokens" in (row.error or "") for row in rows)
