"""Sample: a share of the rows, or some of each chunk."""

from __future__ import annotations

import pyarrow as pa
import pytest

from operators.sample_rows import Sample
from pipeline.api.errors import ConfigError
from pipeline.api.records import ROW
from tests.operators.arrivals import Outcome, in_order

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
        ({}, "give fraction .* or per_chunk"),
        ({"fraction": 0.1, "per_chunk": 1}, "give fraction .* or per_chunk"),
        ({"fraction": 0.0}, "fraction=0.0 cannot work: it is a share"),
        ({"fraction": 1.5}, "it is a share"),
        ({"per_chunk": 0}, "per_chunk=0 cannot work"),
    ],
)
def test_what_cannot_work_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Sample(**arguments)
