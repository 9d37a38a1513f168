"""Sample: a share of the rows, some of each chunk, or so many of each value of a column."""

from __future__ import annotations

from collections import Counter
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.rows import groups
from operators.sample_rows import Sample
from pipeline.api.errors import ConfigError
from pipeline.api.protocols import remembers
from pipeline.api.records import ROW
from tests.operators.arrivals import Outcome, in_order, mixed, resumed

SCHEMA = pa.schema([ROW])
CHUNKS = [[{"row": i} for i in range(first, first + 100)] for first in range(0, 1000, 100)]


def sampled(**arguments) -> list[int]:
    op = Sample(**arguments)
    op.plan(SCHEMA)
    return sorted(row for row, _ in Outcome().take(op, in_order(CHUNKS, SCHEMA)).rows)


def test_a_fraction_is_about_that_many_and_a_larger_one_has_them_too():
    some, more = sampled(fraction=0.1), sampled(fraction=0.3)
    assert 60 < len(some) < 140
    assert 240 < len(more) < 360
    assert set(some) < set(more)
    assert sampled(fraction=1) == list(range(1000))


def test_per_chunk_is_exactly_that_many_of_each():
    kept = sampled(per_chunk=7)
    assert [sum(row // 100 == chunk for row in kept) for chunk in range(10)] == [7] * 10
    assert sampled(per_chunk=100) == list(range(1000))


def test_the_seed_decides_which():
    assert sampled(fraction=0.1) == sampled(fraction=0.1, seed=0)
    assert sampled(fraction=0.1) != sampled(fraction=0.1, seed=1)
    assert sampled(per_chunk=7) != sampled(per_chunk=7, seed=1)


def test_samples_of_one_row_are_chosen_one_by_one():
    """They differ in nothing but lineage."""
    schema = pa.schema([ROW, ("lineage", pa.list_(pa.int32()))])
    rows = [{"row": 0, "lineage": [i]} for i in range(100)]
    op = Sample(fraction=0.5)
    op.plan(schema)
    assert 30 < len(Outcome().take(op, in_order([rows], schema)).rows) < 70


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give fraction .* per_chunk .* or per and rows"),
        ({"fraction": 0.1, "per_chunk": 1}, "and one of them alone"),
        ({"fraction": 0.1, "per": "n", "rows": 1}, "and one of them alone"),
        ({"per": [], "rows": 1}, "give fraction"),
        ({"per": "n"}, "rows=None cannot work: it is 1 or more: how many of each value"),
        ({"per": "n", "rows": 0}, "rows=0 cannot work"),
        ({"fraction": 0.1, "rows": 5}, "rows=5 is for each value of a column: .* operators.limit.Limit, rows: 5"),
        ({"fraction": 0.0}, "fraction=0.0 cannot work: it is a share"),
        ({"fraction": 1.5}, "it is a share"),
        ({"per_chunk": 0}, "per_chunk=0 cannot work"),
    ],
)
def test_what_cannot_work_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Sample(**arguments)


QUOTA_SCHEMA = pa.schema(
    [ROW, ("kind", pa.string()), ("level", pa.float64()), ("tags", pa.list_(pa.binary())), ("day", pa.date32())]
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "kind": st.none() | st.sampled_from(["", "a", "null", "None"]),
    "level": st.none() | st.sampled_from([1.0, 0.5, float("inf")]),
    "tags": st.none() | st.lists(st.none() | st.sampled_from([b"", b"x\xff"]), max_size=2),
    "day": st.none() | st.sampled_from([date(1, 1, 1), date(2026, 1, 2)]),
}


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.fixed_dictionaries(VALUES), max_size=20),
    per=st.lists(st.sampled_from([*VALUES]), min_size=1, max_size=2, unique=True),
    quota=st.integers(1, 3),
    chunk_rows=st.integers(1, 7),
    data=st.data(),
)
def test_quotas_are_a_count_in_plain_python_also_where_the_run_was_killed(rows, per, quota, chunk_rows, data):
    numbered = [{"row": i, **row} for i, row in enumerate(rows)]
    chunks = [numbered[i : i + chunk_rows] for i in range(0, len(rows), chunk_rows)] or [[]]
    kept, seen = [], Counter[str]()
    for row in numbered:
        group = repr([row[name] for name in per])
        seen[group] += 1
        if seen[group] <= quota:
            kept.append(row["row"])

    def quotas() -> Sample:
        op = Sample(per=per[0] if len(per) == 1 else per, rows=quota)
        op.plan(QUOTA_SCHEMA)
        return op

    last = data.draw(st.integers(0, len(chunks) - 1))
    outcome = Outcome().take(quotas(), data.draw(mixed(chunks, QUOTA_SCHEMA)), until=last)
    outcome.take(resumed(quotas(), outcome), data.draw(mixed(chunks, QUOTA_SCHEMA, first=last + 1)))
    assert sorted(row for row, _ in outcome.rows) == kept
    assert sorted(row for row, _ in outcome.rejects) == sorted({*range(len(rows))} - {*kept})


def test_what_is_beyond_a_quota_is_filtered_with_value_and_quota():
    schema = pa.schema([ROW, ("topic", pa.string()), ("level", pa.int64())])
    values = [("sport", 1), ("sport", 1), (None, 1), (None, 1), ("x" * 99, None), ("x" * 99, None)]
    op = Sample(per=["topic", "level"], rows=1)
    op.plan(schema)
    rows = [{"row": i, "topic": topic, "level": level} for i, (topic, level) in enumerate(values)]
    outcome = Outcome().take(op, in_order([rows], schema))
    assert outcome.rejects == {
        (1, ()): ("filtered", 'beyond the first 1 row of topic="sport", level=1'),
        (3, ()): ("filtered", "beyond the first 1 row of topic=null, level=1"),
        (5, ()): ("filtered", f'beyond the first 1 row of topic="{"x" * 59} ..., level=null'),
    }


def test_a_chunk_adds_what_it_keeps_to_the_state_and_more_values_than_can_be_counted_are_refused(monkeypatch):
    schema = pa.schema([ROW, ("topic", pa.int64())])
    chunks = [[{"row": 4 * c + i, "topic": i % 2} for i in range(4)] for c in range(4)]
    op = Sample(per="topic", rows=3)
    op.plan(schema)
    outcome = Outcome().take(op, in_order(chunks, schema))
    assert [len(state) for state in outcome.states.values()] == [48, 48, 0, 0]
    monkeypatch.setattr(groups, "MOST_GROUPS", 1)
    with pytest.raises(ConfigError, match=r"more than 1 different values.*quota to a column with fewer"):
        resumed(Sample(per="topic", rows=3), outcome)


def test_what_draws_keeps_no_state_so_that_runs_of_before_go_on():
    assert [remembers(op) for op in (Sample(0.1), Sample(per_chunk=1), Sample(per="n", rows=1))] == [False, False, True]
