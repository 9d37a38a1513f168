"""Explode: elements of lists as rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.explode import Explode
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import LINEAGE, ROW, Batch, Rejects
from tests.operators.flow import Flow, Rows, chain

LISTS = pa.schema([("id", pa.string()), ("items", pa.list_(pa.int64()))])
ITEMS: list[tuple[str, list[int] | None]] = [("a", [7, 8]), ("b", []), ("c", None), ("d", [9])]
ROWS: list[dict[str, Any]] = [{"id": i, "items": items} for i, items in ITEMS]


def test_a_row_for_each_element_with_its_position_in_the_lineage(tmp_path):
    flow = Flow(tmp_path, chain(Rows(ROWS, LISTS), explode=Explode("items", as_="item")))
    assert [tuple(r.values()) for r in flow.run()] == [(0, [0], "a", 7), (0, [1], "a", 8), (3, [0], "d", 9)]
    assert flow.tally.by_reason == {("explode", "filtered", "the list 'items' is empty"): 2}


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3), max_size=8),
    st.integers(0, 3),
    st.sampled_from(["reject", "keep"]),
    st.sampled_from([pa.list_, pa.large_list]),
)
def test_it_is_what_two_nested_loops_make(lists, start, empty, kind):
    """Also of slices, whose buffers begin elsewhere, and of nulls with something under them."""
    schema = pa.schema([ROW, LINEAGE, ("items", kind(pa.int64()))])
    rows = list(range(len(lists)))
    data = pa.record_batch([rows, [[r, r] for r in rows], pa.array(lists, kind(pa.int64()))], schema=schema)
    data = data.slice(start)
    op = Explode("items", empty=empty)
    op.plan(schema)
    expected, empties = [], 0
    for row, items in list(zip(rows, lists, strict=True))[start:]:
        empties += not items
        each = items or ([None] if empty == "keep" else [])
        expected += [{"row": row, "lineage": [row, row, i], "items": item} for i, item in enumerate(each)]
    batches = [out for out in op.process(Batch(0, data)) if isinstance(out, Batch)]
    rejects = [out for out in op.process(Batch(0, data)) if isinstance(out, Rejects)]
    assert [r for b in batches for r in b.data.to_pylist()] == expected
    rejected = sum(r.num_rows for r in rejects)
    assert rejected == (empties if empty == "reject" else 0)
    assert data.num_rows + sum(b.expanded for b in batches) == len(expected) + rejected


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"column": "nothing"}, SchemaError, "needs a column 'nothing'"),
        ({"column": "id"}, SchemaError, "column 'id' has type string; it must be a list"),
        ({"column": "items", "as_": "id"}, SchemaError, "would write the column 'id', which the input has already"),
        ({"column": "items", "empty": "drop"}, ConfigError, "empty='drop' cannot work: it is one of reject, keep"),
        ({"column": "lineage"}, ConfigError, "'lineage' says which row it is"),
        ({"column": "items", "as_": "lineage"}, ConfigError, "'lineage' says which row it is"),
    ],
)
def test_what_cannot_work_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Explode(**arguments).plan(pa.schema([ROW, *LISTS]))
