"""The rules of scheduling, each on what it is told."""

from __future__ import annotations

import numpy as np
import pytest

from operators.engine.backend.fake import FakeDecoder
from operators.engine.scheduler import policy
from operators.engine.scheduler.policy import (
    PATIENCE,
    KvBudget,
    StepKind,
    engine_rank,
    match_rank,
    may_admit,
    may_pass,
    next_batch,
    order,
    resumed,
    victim,
)
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import Slot
from tests.operators.engine.fixtures import GREEDY, WARM, Bench, prompts, sequences, shape


def seq(length: int = 10, max_tokens: int = 30, priority: float = 0.0, chunk: int = 0) -> Sequence:
    return Sequence(0, np.zeros(length, np.int32), GREEDY, 0, max_tokens, priority=priority, chunk=chunk)


def test_rows_wait_by_age_then_priority_then_length_then_arrival():
    waiting = [seq(), seq(max_tokens=90), seq(priority=1.0), seq(chunk=1), seq(chunk=2, priority=9.0)]
    for longest_first, wanted in ((True, [2, 1, 0, 3, 4]), (False, [2, 0, 1, 3, 4])):
        places = [order(one, n, longest_first=longest_first) for n, one in enumerate(waiting)]
        assert sorted(range(5), key=places.__getitem__) == wanted


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


def test_a_cached_prefix_passes_rows_of_its_age_and_priority_alone():
    first, shorter, less, younger = (
        order(one, n, longest_first=True)
        for n, one in enumerate((seq(), seq(max_tokens=1), seq(priority=-1.0), seq(chunk=2)))
    )
    assert may_pass(shorter, first)
    assert not may_pass(less, first)
    assert not may_pass(younger, first)


def test_the_longest_prefix_is_taken_over_then_what_is_there_then_the_lowest_slot():
    slots = [Slot(FakeDecoder(shape()), index, num_cached=cached) for index, cached in enumerate((50, 64, 64, 0))]
    matches = [(slots[3], 80), (slots[1], 64), (slots[2], 64), (slots[0], 64)]
    assert sorted(matches, key=lambda match: match_rank(*match), reverse=True) == matches


def test_an_engine_that_waited_comes_first_then_the_fuller_then_the_deeper():
    ranks = [engine_rank(PATIENCE, 0.1, 0), engine_rank(0, 1.0, 0), engine_rank(1, 0.5, 9), engine_rank(2, 0.5, 1)]
    assert sorted(ranks, reverse=True) == ranks


def test_the_youngest_gives_up_its_slot_and_the_oldest_is_resumed_first():
    rows = [seq(), seq(), seq()]
    for row, number in zip(rows, (4, 7, 2), strict=True):
        row.placement.admission = number
    assert victim(rows) is rows[1]
    assert resumed(rows) is rows[2]
