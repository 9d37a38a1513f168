"""Union: lineage tells the inputs apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.filter import Filter
from operators.rows.lineage import append_to_lineage
from operators.union import Union
from pipeline.api.errors import SchemaError
from pipeline.api.records import LINEAGE, ROW
from pipeline.dataflow.graph import Node
from tests.operators.flow import Flow, Rows, chain

PROMPT = pa.schema([("prompt", pa.string())])


def test_rows_of_all_inputs_with_their_port(tmp_path: Path) -> None:
    nodes = chain(Rows([{"prompt": p} for p in "abc"], PROMPT, chunk_rows=2))
    nodes |= {
        "some": Node(Filter("prompt <> 'b'"), ("source",)),
        "both": Node(Union(), ("source", "some"), capacity_rows=1),
        "twice": Node(Union(), ("both", "source")),
    }
    flow = Flow(tmp_path, nodes)
    rows = [(r["row"], r["lineage"], r["prompt"]) for r in flow.run()]
    assert rows == [
        (0, [0, 0], "a"), (0, [1], "a"), (0, [1, 0], "a"),
        (1, [0, 0], "b"), (1, [1], "b"),
        (2, [0, 0], "c"), (2, [1], "c"), (2, [1, 0], "c"),
    ]  # fmt: skip


@given(st.lists(st.none() | st.lists(st.integers(0, 99), max_size=3), max_size=9), st.integers(0, 3))
def test_a_number_is_appended_to_each_lineage(before: list[list[int] | None], start: int) -> None:
    column = pa.array(before, LINEAGE.type).slice(start)
    numbers = np.arange(len(column), dtype=np.int32)
    after = append_to_lineage(column, numbers)
    assert after.to_pylist() == [[*(old or []), i] for i, old in enumerate(before[start:])]
    assert append_to_lineage(None, numbers).to_pylist() == [[i] for i in range(len(column))]


def test_columns_must_be_equal() -> None:
    first = pa.schema([ROW, *PROMPT])
    assert Union().plan(first, pa.schema([*PROMPT, LINEAGE, ROW])).names == ["row", "lineage", "prompt"]
    for other, message in (
        (pa.schema([ROW]), "column 'prompt' is string in input 0 and absent in input 1"),
        (pa.schema([ROW, ("prompt", pa.int64())]), "column 'prompt' is string in input 0 and int64 in input 1"),
    ):
        with pytest.raises(SchemaError, match=message):
            Union().plan(first, other)
    with pytest.raises(SchemaError, match="two or more inputs"):
        Union().plan(first)
