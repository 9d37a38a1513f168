"""Call: a function of the user's own, and what becomes of the rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from operators.call import Call
from pipeline.api.by_batch import OnError
from pipeline.api.errors import ConfigError, GraphError, NodeFailed
from pipeline.config.build import build_graph
from pipeline.dataflow.graph import Node
from pipeline.settings import JobSettings, NodeSettings
from tests.operators.flow import Flow, Rows, chain

SCHEMA = pa.schema([("text", pa.string()), ("n", pa.int64())])
ROWS: list[dict[str, Any]] = [{"text": "ab", "n": 1}, {"text": "c", "n": 2}, {"text": None, "n": 3}]
HERE = "tests.operators.test_call"

Row = dict[str, Any]


def size(row: Row) -> Row:
    return {"size": len(row["text"])}


def with_text_only(row: Row) -> Row | None:
    return row if row["text"] else None


def letters(row: Row) -> list[Row]:
    return [{**row, "text": letter} for letter in row["text"] or ""]


def returns(row: Row, value: Any) -> Any:
    return value


def called(tmp_path: Path, op: Call, on_error: OnError = OnError.FAIL) -> tuple[list[tuple[Any, ...]], Flow]:
    nodes = chain(Rows(ROWS, SCHEMA, batch=2))
    op.on_error = on_error
    flow = Flow(tmp_path, {**nodes, "call": Node(op, ("source",))})
    return [tuple(row.values()) for row in flow.run()], flow


def test_a_dict_adds_and_replaces_and_the_rest_stays(tmp_path):
    op = Call(lambda row: {"n": row["n"] * 10, "size": 1.0}, {"size": "double"})
    assert called(tmp_path, op)[0] == [(0, "ab", 10, 1.0), (1, "c", 20, 1.0), (2, None, 30, 1.0)]


def test_a_type_may_change(tmp_path):
    assert called(tmp_path, Call(lambda row: {"n": str(row["n"])}, {"n": "string"}))[0][0] == (0, "ab", "1")


LISTS = pa.schema([("ids", pa.list_(pa.int64())), ("at", pa.time64("ns")), ("n", pa.int64())])


def changes_its_row(row: Row) -> Row:
    row["ids"].append(9)
    return {"ids": row["ids"]} if row["n"] == 2 else {}


def changes_its_row_for_each(row: Row) -> Iterator[Row]:
    for n in (7, 8):
        row["ids"].append(n)
        yield {"n": n}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("function", "ids"),
    [(changes_its_row, [[1], [2, 9], [3]]), (changes_its_row_for_each, [[1], [1], [2], [2], [3], [3]])],
)
def test_what_is_not_returned_stays_though_the_function_changes_it_in_place(tmp_path, function, ids, batch):
    given = [{"ids": [n], "at": n, "n": n} for n in (1, 2, 3)]
    op = Call(function, many=function is changes_its_row_for_each)
    flow = Flow(tmp_path, chain(Rows(given, LISTS, batch=batch), call=op))
    assert [row["ids"] for row in flow.run()] == ids
    times = pa.concat_arrays([b.data.column("at") for b in flow.sink.batches]).cast(pa.int64())
    assert set(times.to_pylist()) == {1, 2, 3}  # Python's times have no nanoseconds


def test_a_whole_number_may_be_written_with_a_point_and_no_other(tmp_path):
    kind = {"made": "list<struct<x: int64>>"}
    assert called(tmp_path / "a", Call(lambda row: {"made": [{"x": 2.0}, {}]}, kind))[0][0][-1] == [
        {"x": 2},
        {"x": None},
    ]
    with pytest.raises(NodeFailed, match=r"2.5 is no whole number"):
        called(tmp_path / "b", Call(lambda row: {"made": [{"x": 2}, {"x": 2.5}]}, kind))


def test_none_is_a_reject_that_was_asked_for(tmp_path):
    rows, flow = called(tmp_path, Call(with_text_only))
    assert rows == [(0, "ab", 1), (1, "c", 2)]
    assert flow.tally.by_reason == {("call", "filtered", "with_text_only returned nothing"): 1}


def test_many_gives_a_row_for_each_with_its_number_in_the_lineage(tmp_path):
    rows, flow = called(tmp_path, Call(letters, many=True))
    assert rows == [(0, [0], "a", 1), (0, [1], "b", 1), (1, [0], "c", 2)]
    assert flow.tally.by_reason == {("call", "filtered", "letters returned nothing"): 1}


@pytest.mark.parametrize(
    ("op", "says"),
    [
        (Call(size, {"size": "int64"}), rf"NoneType' has no len\(\) \(row 2; {re.escape(__file__)}:\d+\)"),
        (Call(lambda row: {"n": 3 / row["n"]}), r"1.5 is no whole number \(row 1\)"),
    ],
)
def test_the_row_and_the_line_at_which_a_function_fails_are_named(tmp_path, op, says):
    with pytest.raises(NodeFailed, match=says):
        called(tmp_path, op)


def test_what_it_raises_is_for_on_error(tmp_path):
    with pytest.raises(NodeFailed, match=r"node 'call' failed: TypeError: object of type 'NoneType'"):
        called(tmp_path / "fail", Call(size, {"size": "int64"}))
    rows, flow = called(tmp_path / "reject", Call(size, {"size": "int64"}), OnError.REJECT)
    assert rows == [(0, "ab", 1, 2), (1, "c", 2, 1)]
    assert flow.tally.errors == 1


@pytest.mark.parametrize(
    ("value", "many", "message"),
    [
        ({"sise": 1}, False, "returned the key 'sise', which is no column; declare it: columns: {sise: string}"),
        ({"row": 9}, False, "changed 'row' or 'lineage'"),
        ({"n": "x"}, False, "column 'n' is int64: "),
        ({"n": 0.9}, False, "column 'n' is int64: 0.9 is no whole number"),
        ({"text": "\ud800"}, False, "column 'text' has half a character"),
        ({"n": np.float32(0.5)}, False, "column 'n' is int64: 0.5 is no whole number"),
        ({"n": float("nan")}, False, "column 'n' is int64: nan is no whole number"),
        ("x", False, "returned str; it returns a dict or None"),
        ([{}], False, "returned list; .* write many: true"),
        ({}, True, "returned dict; with many: true it returns a list of dicts"),
        ("x", True, "returned str; with many: true"),
        ([3], True, "returned int; it returns a dict or None"),
    ],
)
def test_what_cannot_be_a_row_is_said(tmp_path, value, many, message):
    with pytest.raises(NodeFailed, match=message):
        called(tmp_path, Call(returns, arguments={"value": value}, many=many))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": "text"}, "columns.a='text' is not a type: unknown type 'text'"),
        ({"row": "int64"}, "'row' says which row it is"),
    ],
)
def test_columns_that_cannot_be_are_refused(columns, message):
    with pytest.raises(ConfigError, match=message):
        Call(size, columns)


def graph_of(**op: Any) -> Any:
    nodes = {
        "numbers": NodeSettings({"_target_": "tests.pipeline.job_ops.Numbers", "rows": 5}),
        "call": NodeSettings({"_target_": "operators.call.Call", **op}, "numbers"),
        "write": NodeSettings({"_target_": "tests.pipeline.job_ops.Parquet"}, "call"),
    }
    return build_graph(JobSettings(nodes=nodes))


def test_a_job_names_the_function_by_its_module():
    node = graph_of(function=f"{HERE}.size", columns={"size": "int64"}).nodes["call"]
    assert node.code == ("operators.call.Call", f"{HERE}.size")
    assert isinstance(node.op, Call)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (f"{HERE}.sise", "node 'call': function: module .* has no 'sise'; did you mean 'size'"),
        (f"{HERE}.HERE", "node 'call': function: .* is a str, not a function"),
        ("nowhere.at_all", "there is no module 'nowhere'"),
    ],
)
def test_a_function_that_is_not_there_is_refused(function, message):
    with pytest.raises(GraphError, match=message):
        graph_of(function=function)
