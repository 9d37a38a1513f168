"""The scheduler on the fake decoder: a row's tokens depend on the row alone, slots stay whole and contiguous."""

from __future__ import annotations

import numpy as np
import pytest

from operators.decoding.scheduler import Line, Prefill, Scheduler, Unfilled
from operators.decoding.sequence import FinishReason, Sequence, State
from tests.decoding.fixtures import GREEDY, WARM, Bench, prompts, sequences, shape


def alone(texts, params=GREEDY):
    """Each prompt in an engine of its own."""
    return {i: Bench(shape(1)).run(sequences([text], params))[0] for i, text in enumerate(texts)}


@pytest.mark.parametrize("slots", [1, 2, 7, 16])
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("per_sequence", [True, False])
def test_batched_equals_single(slots, params, per_sequence):
    texts = prompts(40, longest=200)
    bench = Bench(shape(slots, per_sequence=per_sequence, deterministic=per_sequence))
    rows = [Sequence(i, t, params, seed=1000 + i, max_tokens=30) for i, t in enumerate(texts)]
    single = {
        i: Bench(shape(1)).run([Sequence(i, t, params, seed=1000 + i, max_tokens=30)])[i] for i, t in enumerate(texts)
    }
    assert bench.run(rows) == single


def test_order_of_admission_changes_nothing():
    texts = prompts(30)
    rows = sequences(texts, WARM)
    shuffled = [rows[i] for i in np.random.default_rng(3).permutation(30)]
    assert Bench(shape(5)).run(shuffled) == Bench(shape(5)).run(sequences(texts, WARM))


def test_every_decode_step_has_contiguous_slots_from_zero():
    bench = Bench(shape(6))
    bench.run(sequences(prompts(30)))
    decodes = [call for call, step in zip(bench.decoder.calls, bench.steps.rows, strict=True) if step[3]]
    assert decodes
    assert all(call == tuple(range(len(call))) for call in decodes)


def test_a_prefill_call_is_one_micro_batch():
    bench = Bench(shape(6))
    bench.run(sequences([np.full(10, i, np.int32) for i in range(6)]))
    assert bench.decoder.calls[0] == (0, 1, 2, 3, 4, 5)  # 6 x 10 tokens fit n_ubatch=64
    bench = Bench(shape(6))
    bench.run(sequences([np.full(30, i, np.int32) for i in range(6)]))
    assert bench.decoder.calls[:3] == [(0, 1), (2, 3), (4, 5)]
    bench = Bench(shape(3))
    bench.run(sequences([np.full(n, 1, np.int32) for n in (10, 11, 10)]))
    assert bench.decoder.calls[:3] == [(0,), (1,), (2,)]


def test_slots_that_are_not_neighbours_prefill_apart():
    scheduler = Scheduler(shape(3), lambda *_: None)
    line = Line(1, lambda: 10)
    scheduler.add_line(line)
    line.waiting.extend(sequences([np.full(10, i, np.int32) for i in range(3)]))
    scheduler.schedule(0.0)
    scheduler.slots.rows()[1].state = State.DECODE
    work = scheduler.schedule(0.0)
    assert isinstance(work, Prefill)
    assert [row.slot for row in work.sequences] == [0]


def test_long_prompts_are_cut_where_the_row_alone_decides():
    bench = Bench(shape(2))
    bench.run(sequences([np.full(150, 1, np.int32), np.full(70, 2, np.int32)], max_tokens=1))
    assert [step[2] for step in bench.steps.rows if step[2]] == [64, 64, 22, 64, 6]


def test_the_backend_never_sees_a_lone_row():
    bench = Bench(shape(1))
    seen: list[tuple[int, int]] = []
    decode = bench.decoder.decode

    def watch():
        n = bench.decoder.batch.n_tokens
        seen.append((n, int(bench.decoder.batch.output[:n].sum())))
        return decode()

    bench.decoder.decode = watch  # type: ignore[method-assign]
    bench.run(sequences([np.array([5], np.int32), np.arange(65, dtype=np.int32), np.arange(3, dtype=np.int32)]))
    assert seen
    assert all(tokens >= 2 and outputs != 1 for tokens, outputs in seen)


def test_a_freed_slot_is_refilled_at_once():
    bench = Bench(shape(4))
    bench.run(sequences(prompts(60, longest=20)))
    waits = [dict(zip(Unfilled, step[-4:], strict=True)) for step in bench.steps.rows if step[3]]
    assert all(w[Unfilled.INPUT] == w[Unfilled.REFILL] == w[Unfilled.CREDIT] == 0 for w in waits)
    assert any(w[Unfilled.TAIL] for w in waits)


def test_refill_waits_for_free_slots_but_never_while_nothing_decodes():
    bench = Bench(shape(4), refill=4)
    result = bench.run(sequences(prompts(20, longest=20)))
    assert len(result) == 20
    assert any(step[-2] for step in bench.steps.rows)


def test_credit_bounds_what_is_in_flight():
    bench = Bench(shape(4))
    client = bench.client(capacity=3)
    client.submit(sequences(prompts(10, longest=20)))
    seen = 0
    while bench.scheduler.runnable:
        bench.engine.step()
        seen = max(seen, len(bench.scheduler.slots))
    assert seen == 3
    assert client.waiting == 7
    assert len(client.collect()) == 3
    assert any(step[-3] for step in bench.steps.rows if step[3])


def test_the_deepest_line_is_served_first():
    scheduler = Scheduler(shape(2), lambda *_: None)
    near, far = Line(1, lambda: 10), Line(5, lambda: 10)
    scheduler.add_line(near)
    scheduler.add_line(far)
    near.waiting.extend(sequences(prompts(2)))
    far.waiting.extend(sequences(prompts(2)))
    scheduler.schedule(0.0)
    assert not far.waiting
    assert len(near.waiting) == 2


def test_finish_reasons():
    bench = Bench(shape(2))
    client = bench.client()
    rows = sequences(prompts(40), max_tokens=12)
    client.submit(rows)
    while bench.scheduler.runnable:
        bench.engine.step()
    for row in client.collect():
        assert row.state is State.FINISHED
        if row.finish_reason is FinishReason.LENGTH:
            assert len(row.tokens) == 12
        else:
            assert row.finish_reason is FinishReason.STOP
            assert len(row.tokens) < 12
    assert {row.finish_reason for row in rows} == {FinishReason.LENGTH, FinishReason.STOP}
