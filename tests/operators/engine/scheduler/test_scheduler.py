"""The scheduler on the fake decoder: a row's tokens depend on the row alone, slots stay whole and contiguous."""

from __future__ import annotations

import numpy as np
import pytest

from operators.engine.scheduler.step_batch import IdleReason, StepBatch
from operators.engine.sequence import FinishReason, State
from operators.engine.sequence.placement import NodeQueue
from pipeline.api.meter import StageMeter
from tests.operators.engine.fixtures import Bench, prompts, sequences, shape

pytestmark = pytest.mark.usefixtures("memory")


def test_every_decode_step_has_contiguous_slots_from_zero():
    bench = Bench(shape(6))
    bench.run(sequences(prompts(30)))
    decodes = [call for call, n in zip(bench.decoder.calls, bench.column("decode_tokens"), strict=True) if n]
    assert decodes
    assert all(call == tuple(range(len(call))) for call in decodes)


def test_a_prefill_call_is_one_micro_batch():
    bench = Bench(shape(6))
    bench.run(sequences([np.full(20, i, np.int32) for i in range(6)]))
    assert bench.decoder.calls[0] == (0, 1, 2, 3, 4, 5)  # 6 x 20 tokens fit n_ubatch=128
    bench = Bench(shape(6))
    bench.run(sequences([np.full(60, i, np.int32) for i in range(6)]))
    assert bench.decoder.calls[:3] == [(0, 1), (2, 3), (4, 5)]


def prefills(bench: Bench) -> list[tuple[int, int]]:
    """Rows and tokens of each call that computed prompts."""
    steps = zip(bench.decoder.calls, bench.column("prefill_tokens"), strict=True)
    return [(len(call), tokens) for call, tokens in steps if tokens]


def test_only_prompts_of_equal_length_share_a_call():
    texts = [np.full(n, i, np.int32) for i, n in enumerate((20, 20, 19, 10))]
    bench = Bench(shape(4))
    bench.run(sequences(texts))
    assert prefills(bench) == [(2, 40), (1, 19), (1, 10)]


def test_slots_that_are_not_neighbours_prefill_apart():
    bench = Bench(shape(3))
    client = bench.client()
    client.submit(sequences([np.full(10, i, np.int32) for i in range(3)]))
    bench.scheduler.schedule(0.0)
    bench.scheduler.slots.rows()[1].state = State.DECODE
    work = bench.scheduler.schedule(0.0)
    assert isinstance(work, StepBatch)
    assert [row.slot.index for row in work.sequences] == [0]


@pytest.mark.parametrize("length", [129, 191, 192, 193, 200, 255])
def test_no_piece_of_a_long_prompt_is_short(length):
    bench = Bench(shape(2))
    bench.run(sequences([np.arange(length, dtype=np.int32)], max_tokens=1))
    pieces = [tokens for _, tokens in prefills(bench)]
    assert sum(pieces) == length
    assert all(64 <= piece <= 128 for piece in pieces)


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
    waits = {cause: sum(bench.column(f"unfilled_{cause}")) for cause in IdleReason}
    assert waits.pop(IdleReason.TAIL)
    assert not any(waits.values())


def test_credit_bounds_what_is_in_flight():
    bench = Bench(shape(4))
    client = bench.client(capacity=3)
    client.submit(sequences(prompts(10, longest=20)))
    seen = 0
    while bench.scheduler.runnable:
        bench.worker.step()
        seen = max(seen, len(bench.scheduler.slots))
    assert seen == 3
    assert client.waiting == 7
    assert len(client.collect()) == 3
    assert any(bench.column("unfilled_credit"))


def test_the_deepest_node_is_served_first():
    bench = Bench(shape(2))
    near, far = (NodeQueue(StageMeter("node"), depth, 10, lambda: None) for depth in (1, 5))
    bench.queue.add(near)
    bench.queue.add(far)
    bench.queue.submit(near, sequences(prompts(2)))
    bench.queue.submit(far, sequences(prompts(2)))
    bench.scheduler.schedule(0.0)
    assert (near.waiting, far.waiting) == (2, 0)


def test_finish_reasons():
    bench = Bench(shape(2))
    client = bench.client()
    rows = sequences(prompts(40), max_tokens=12)
    client.submit(rows)
    while bench.scheduler.runnable:
        bench.worker.step()
    for row in client.collect():
        assert row.state is State.FINISHED
        if row.finish_reason is FinishReason.LENGTH:
            assert len(row.tokens) == 12
        else:
            assert row.finish_reason is FinishReason.STOP
            assert len(row.tokens) < 12
    assert {row.finish_reason for row in rows} == {FinishReason.LENGTH, FinishReason.STOP}
