"""Slots are given lowest first, and none is lost or given twice."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from operators.engine.backend.fake import FakeDecoder
from operators.engine.scheduler.slots import SlotPool
from tests.operators.engine.fixtures import check_pool, prompts, sequences, shape

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
