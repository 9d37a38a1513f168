"""Rows that give up their slot go on as if nothing had been; priorities; room in the KV cache."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from operators.engine.scheduler import policy
from operators.engine.sequence import Sequence
from tests.operators.engine.fixtures import GREEDY, WARM, Bench, prompts, sequences, shape
from tests.operators.engine.rules import scheduled
from tests.sets import often

pytestmark = pytest.mark.usefixtures("memory")


@pytest.mark.parametrize("params", often([GREEDY, WARM], WARM), ids=["greedy", "warm"])
def test_a_cache_that_is_promised_twice_loses_no_row(params):
    """Eight slots share 300 cells; a row may take 150. Two rows of three end early, so that little is expected."""
    texts = prompts(40, longest=60)
    endless = replace(params, stop_ids=frozenset())

    def rows_of(texts: Seq[np.ndarray]) -> list[Sequence]:
        return [Sequence(i, t, params if i % 3 else endless, seed=i, max_tokens=90) for i, t in enumerate(texts)]

    sizes = shape(8, per_sequence=False, deterministic=False, n_ctx=300)
    bench = Bench(sizes, admission="optimistic")
    assert bench.run(rows_of(texts)) == Bench(shape(8)).run(rows_of(texts))
    assert bench.scheduler.counts.preempted > 0


def test_by_default_no_room_is_promised_twice():
    sizes = shape(8, per_sequence=False, deterministic=False, n_ctx=300)
    bench = Bench(sizes)
    texts = prompts(30, longest=60)
    assert bench.run(sequences(texts, max_tokens=90)) == Bench(shape(8)).run(sequences(texts, max_tokens=90))
    assert bench.scheduler.counts.preempted == 0
    assert any(bench.column("unfilled_room"))


def test_the_reservations_of_all_rows_are_not_summed_for_each_that_is_admitted(monkeypatch):
    bench = Bench(shape(64, per_sequence=False, deterministic=False))
    summed = Mock(side_effect=policy.reservation)
    monkeypatch.setattr(policy, "reservation", summed)
    bench.client().submit(sequences(prompts(64)))
    bench.scheduler.schedule(0.0)
    assert len(bench.scheduler.slots) == 64
    assert summed.call_count <= 2 * 64


def test_pieces_of_prompts_ride_along_in_the_unified_layout():
    bench = Bench(shape(3, per_sequence=False, deterministic=False))
    bench.run(sequences(prompts(20, longest=200)))
    both = zip(bench.column("prefill_tokens"), bench.column("decode_tokens"), strict=True)
    assert any(prefill and decode for prefill, decode in both)


def admitted(rows: list[Sequence]) -> list[object]:
    return [row.handle for row in sorted(rows, key=lambda row: row.placement.admission)]


def test_a_drawn_order_is_another_one_and_the_same_each_time():
    def order(seed: int | None) -> list[object]:
        rows = sequences([np.full(5, i, np.int32) for i in range(20)])
        with scheduled(shuffle=seed):
            Bench(shape(1)).run(rows)
        return admitted(rows)

    assert order(1) == order(1)
    assert len({str(order(seed)) for seed in (None, 1, 2)}) == 3


def test_rows_of_higher_priority_are_admitted_first():
    bench = Bench(shape(1))
    rows = sequences([np.full(5, i, np.int32) for i in range(6)])
    for row, priority in zip(rows, (0, 3, 1, 3, -1, 0), strict=True):
        row.priority = priority
    bench.run(rows)
    assert admitted(rows) == [1, 3, 2, 0, 5, 4]
