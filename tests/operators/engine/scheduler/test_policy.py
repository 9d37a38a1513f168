"""The four functions of the policy, each on what it is told."""

from __future__ import annotations

import numpy as np
import pytest

from operators.engine.scheduler import policy
from operators.engine.scheduler.policy import KvState, StepKind, may_admit, next_batch, order, victim
from operators.engine.sequence import Sequence
from tests.operators.engine.fixtures import GREEDY, WARM, Bench, prompts, sequences, shape


def seq(length: int = 10, max_tokens: int = 30, priority: float = 0.0, chunk: int = 0) -> Sequence:
    return Sequence(0, np.zeros(length, np.int32), GREEDY, 0, max_tokens, priority=priority, chunk=chunk)


def test_rows_wait_by_age_then_priority_then_length_then_arrival():
    waiting = [seq(), seq(max_tokens=90), seq(priority=1.0), seq(chunk=1), seq(chunk=2, priority=9.0)]
    for longest_first, wanted in ((True, [2, 1, 0, 3, 4]), (False, [2, 0, 1, 3, 4])):
        places = [order(one, n, longest_first=longest_first) for n, one in enumerate(waiting)]
        assert sorted(range(5), key=places.__getitem__) == wanted


@pytest.mark.parametrize(
    ("state", "admits"),
    [
        (KvState(None, 1_000_000), True),
        (KvState(10, 0), True),  # alone
        (KvState(100, 60), True),
        (KvState(100, 61), False),
        (KvState(100, 61, optimistic=True), True),  # 10 and 15 of 30 tokens
        (KvState(100, 61, optimistic=True, mean_tokens=30.0), False),
    ],
)
def test_a_row_is_admitted_where_it_fits(state, admits):
    assert may_admit(seq(), state) is admits


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


def test_the_youngest_gives_up_its_slot():
    rows = [seq(), seq(), seq()]
    for row, number in zip(rows, (4, 7, 2), strict=True):
        row.placement.admission = number
    assert victim(rows) is rows[1]
