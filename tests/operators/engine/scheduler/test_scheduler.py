"""The rules of scheduling, each on what it is told; slots are given lowest first, none lost or given twice; and on the
fake decoder, a row's tokens depend on the row alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.engine.backend.fake import FakeDecoder
from operators.engine.scheduler import policy
from operators.engine.scheduler.policy import (
    PATIENCE,
    KvBudget,
    StepKind,
    engine_rank,
    match_rank,
    may_admit,
    next_batch,
    order,
    resumed,
    victim,
)
from operators.engine.scheduler.slots import SlotPool
from operators.engine.scheduler.step_batch import Chunking, IdleReason, StepBatch
from operators.engine.scheduler.waiting_queue import WaitingQueue
from operators.engine.sequence import Sequence, State
from operators.engine.sequence.placement import NodeQueue, Slot
from operators.settings.runtime import OptimiseSettings
from pipeline.api.meter import StageMeter
from tests.operators.engine.fixtures import GREEDY, WARM, Bench, check_pool, prompts, sequences, shape

pytestmark = pytest.mark.usefixtures("memory")


def test_the_deepest_node_is_served_first():
    bench = Bench(shape(2))
    near, far = (NodeQueue(StageMeter("node"), depth, 10, lambda: None) for depth in (1, 5))
    bench.queue.add(near)
    bench.queue.add(far)
    bench.queue.submit(near, sequences(prompts(2)))
    bench.queue.submit(far, sequences(prompts(2)))
    bench.scheduler.schedule(0.0)
    assert (near.waiting, far.waiting) == (2, 0)


def test_every_decode_step_has_contiguous_slots_from_zero():
    bench = Bench(shape(6))
    bench.run(sequences(prompts(30)))
    decodes = [call for call, n in zip(bench.decoder.calls, bench.column("decode_tokens"), strict=True) if n]
    assert decodes
    assert all(call == tuple(range(len(call))) for call in decodes)


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


def seq(length: int = 10, max_tokens: int = 30, priority: float = 0.0, chunk: int = 0) -> Sequence:
    return Sequence(0, np.zeros(length, np.int32), GREEDY, 0, max_tokens, priority=priority, chunk=chunk)


def test_rows_wait_by_age_then_priority_then_length_then_arrival():
    waiting = [seq(), seq(max_tokens=90), seq(priority=1), seq(chunk=1, priority=0.5), seq(chunk=2, priority=9)]
    waiting += [seq(length=9), seq(length=99)]
    for longest_first, wanted in ((True, [2, 3, 1, 0, 5, 6, 4]), (False, [2, 3, 0, 1, 5, 6, 4])):
        places = [order(one, n, longest_first=longest_first) for n, one in enumerate(waiting)]
        assert sorted(range(len(waiting)), key=places.__getitem__) == wanted


@pytest.mark.parametrize(
    ("budget", "reserved", "admits"),
    [
        (KvBudget(None), 1_000_000, True),
        (KvBudget(10), 0, True),  # alone
        (KvBudget(100), 60, True),
        (KvBudget(100), 61, False),
        (KvBudget(100, optimistic=True), 61, True),  # 10 and 15 of 30 tokens
        (KvBudget(100, optimistic=True, finished=2, finished_tokens=60), 61, False),
    ],
)
def test_a_row_is_admitted_where_it_fits(budget, reserved, admits):
    assert may_admit(seq(), budget, reserved) is admits


@pytest.mark.parametrize(
    ("counts", "per_sequence", "block", "kind"),
    [
        ((3, 1, 1), True, 0, StepKind.SAMPLE),
        ((3, 0, 1), True, 0, StepKind.PREFILL),
        ((3, 0, 1), True, 4, StepKind.MIXED),
        ((3, 0, 1), False, 0, StepKind.MIXED),
        ((3, 0, 0), False, 0, StepKind.DECODE),
        ((3, 0, 0), True, 0, StepKind.DECODE),
        ((0, 0, 0), True, 0, None),
    ],
)
def test_sampling_comes_before_prompts_and_prompts_before_decoding(counts, per_sequence, block, kind):
    assert next_batch(*counts, per_sequence=per_sequence, block=block) is kind


def mixed_everywhere(*counts: int, per_sequence: bool, block: int) -> StepKind | None:
    """Prompts beside decoding sequences also where each slot is its own stream."""
    return next_batch(*counts, per_sequence=False, block=block)


def prompts_before_samples(
    rows: int, known: int, prefilling: int, *, per_sequence: bool, block: int
) -> StepKind | None:
    return next_batch(rows, 0 if prefilling else known, prefilling, per_sequence=per_sequence, block=block)


@pytest.mark.parametrize("rule", [mixed_everywhere, prompts_before_samples])
def test_a_rule_is_changed_in_the_policy_alone(monkeypatch, rule):
    texts = [text for text in prompts(30, longest=200) for _ in range(3)]
    expected = Bench(shape(5))
    tokens = expected.run(sequences(texts, WARM))
    monkeypatch.setattr(policy, "next_batch", rule)
    bench = Bench(shape(5))
    assert bench.run(sequences(texts, WARM)) == tokens
    assert bench.column("rows") != expected.column("rows")


@pytest.mark.parametrize(
    ("cached", "chosen"),
    [
        ({"max_tokens": 1}, 1),
        ({"priority": -1.0}, 0),  # it has less priority
        ({"chunk": 2}, 0),  # it is younger
    ],
)
def test_a_cached_prefix_passes_rows_of_its_age_and_priority_alone(cached, chosen):
    queue, node = WaitingQueue(OptimiseSettings(), Chunking(0)), NodeQueue(StageMeter("n"), 1, 9, lambda: None)
    rows = [seq(100), seq(100, **cached)]
    rows[0].prompt = np.full(100, 7, np.int32)
    queue.add(node)
    queue.submit(node, rows)
    slot = Slot(DECODER, 0)
    slot.node = rows[1].placement.node
    queue.own(slot)
    assert policy.next_waiting(node, queue.tree) is rows[chosen]


def test_the_longest_prefix_is_taken_over_then_what_is_there_then_the_lowest_slot():
    slots = [Slot(FakeDecoder(shape()), index, num_cached=cached) for index, cached in enumerate((50, 64, 64, 0))]
    matches = [(slots[3], 80), (slots[1], 64), (slots[2], 64), (slots[0], 64)]
    ranks = [match_rank(*match) for match in matches]
    assert all(better > worse for better, worse in pairwise(ranks))


def test_an_engine_that_waited_comes_first_then_the_fuller_then_the_deeper():
    ranks = [engine_rank(PATIENCE, 0.1, 0), engine_rank(0, 1.0, 0), engine_rank(1, 0.5, 9), engine_rank(2, 0.5, 1)]
    assert all(earlier > later for earlier, later in pairwise(ranks))


def test_the_youngest_gives_up_its_slot_and_the_oldest_is_resumed_first():
    rows = [seq(), seq(), seq()]
    for row, number in zip(rows, (4, 7, 2), strict=True):
        row.placement.admission = number
    assert victim(rows) is rows[1]
    assert resumed(rows) is rows[2]


def test_what_is_reserved_is_the_mean_of_those_that_ended_but_more_than_was_drawn():
    budget = KvBudget(100, optimistic=True, finished=2, finished_tokens=10)
    row = seq()
    assert policy.reservation(row, budget) == row.cells(5)
    row.tokens += range(20)
    assert policy.reservation(row, budget) == row.cells(21)
    row.tokens += range(10)
    assert policy.reservation(row, budget) == row.cells(row.max_tokens)


def test_similar_lengths_get_adjacent_slots():
    assert [len(row.prompt) for row in policy.placing([seq(5), seq(90), seq(6)])] == [90, 6, 5]


@pytest.mark.parametrize(
    ("sizes", "compaction", "lonely", "closes"),
    [
        (shape(4), True, False, True),
        (shape(4), False, True, True),
        (shape(4), False, False, False),
        (shape(4, deterministic=False), False, True, False),
        (shape(4, per_sequence=False, deterministic=False), True, True, False),
    ],
)
def test_holes_are_closed_where_they_cost_time_or_leave_a_row_alone(sizes, compaction, lonely, closes):
    assert policy.closes_holes(sizes, compaction=compaction, lonely=lonely) is closes


DECODER = FakeDecoder(shape(8))


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=60))
def test_any_use_keeps_the_slots_whole(uses):
    pool = SlotPool(DECODER)
    rows = iter(sequences(prompts(60)))
    for give, which in uses:
        if give and pool.free:
            expected = min(set(range(8)) - {r.slot.index for r in pool.rows()})
            assert pool.allocate(next(rows)).index == expected
        elif not give and len(pool):
            pool.release(pool.rows()[which % len(pool)])
        check_pool(pool)
        while (hole := pool.hole()) is not None:
            row, target = hole
            assert target.index < row.slot.index
            pool.release(row)
            assert pool.allocate(row, target) is target
            check_pool(pool)
        assert [r.slot.index for r in pool.rows()] == list(range(len(pool)))
