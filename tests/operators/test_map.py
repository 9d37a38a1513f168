"""Map: columns of columns, in SQL and in Jinja."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from operators.map import Map
from pipeline.api.by_batch import OnError
from pipeline.api.errors import ConfigError, NodeFailed, SchemaError
from pipeline.dataflow.graph import Node
from tests.operators.flow import Flow, Rows, chain

SCHEMA = pa.schema([("text", pa.string()), ("n", pa.int64())])
WORDS = "ARRAY_LENGTH(STRING_TO_ARRAY(text, ' '))"
CONSTANTS: list[tuple[str, pa.DataType, Any]] = [
    ("'a text'", pa.string(), "a text"),
    ("1 + 1", pa.int32(), 2),
    ("0.5", pa.float64(), 0.5),
    ("1 = 1", pa.bool_(), True),
    ("DATE('2026-01-31')", pa.date32(), datetime.date(2026, 1, 31)),
    ("STRING_TO_ARRAY('a|b', '|')", pa.list_(pa.string()), ["a", "b"]),
    ("STRING_TO_ARRAY(CONCAT(LEFT(text, 0), 'a|b'), '|')", pa.list_(pa.string()), ["a", "b"]),  # text is not needed
    ("COALESCE('a', text)", pa.string(), "a"),
    ("CAST(NULL AS VARCHAR)", pa.string(), None),
]
ROWS = [{"text": t, "n": i} for i, t in enumerate(("7", "one two", None, "x"))]


def mapped(tmp_path: Path, op: Map, on_error: OnError = OnError.FAIL) -> tuple[list[dict[str, Any]], Flow]:
    nodes = chain(Rows(ROWS, SCHEMA, chunk_rows=3, batch=2))
    op.on_error = on_error
    flow = Flow(tmp_path, {**nodes, "map": Node(op, ("source",))})
    return flow.run(), flow


def test_columns_are_added_at_the_end_and_replaced_in_their_place(tmp_path):
    op = Map({"n": "n * 10", "words": WORDS}, {"says": "{{ n }}: {{ text or '-' }}"})
    rows, _ = mapped(tmp_path, op)
    assert list(rows[1]) == ["row", "text", "n", "words", "says"]
    assert [r["n"] for r in rows] == [0, 10, 20, 30]
    assert [r["words"] for r in rows] == [1, 2, None, 1]
    assert [r["says"] for r in rows] == ["0: 7", "1: one two", "2: -", "3: x"]  # of the columns as they came in


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("n + 1", pa.int64()),
        ("n / 2.0", pa.float64()),
        ("n > 1", pa.bool_()),
        ("text || '!'", pa.string()),
        ("COALESCE(text, 'none')", pa.string()),
        ("CASE WHEN n > 1 THEN 'big' ELSE 'small' END", pa.string()),
        ("STRING_TO_ARRAY(text, ' ')", pa.list_(pa.string())),
        *((sql, kind) for sql, kind, _ in CONSTANTS),
    ],
)
def test_the_type_that_is_planned_is_that_of_the_rows(tmp_path, sql, kind):
    op = Map({"made": sql})
    assert op.plan(pa.schema([("row", pa.int64()), *SCHEMA])).field("made").type == kind
    _, flow = mapped(tmp_path, Map({"made": sql}))
    assert {b.data.schema.field("made").type for b in flow.sink.batches} == {kind}


@pytest.mark.parametrize(("sql", "kind", "value"), CONSTANTS)
def test_every_row_gets_a_constant(tmp_path, sql, kind, value):
    assert [r["made"] for r in mapped(tmp_path, Map({"made": sql}))[0]] == [value] * len(ROWS)


def test_a_row_whose_template_fails_is_a_reject_and_the_others_stay(tmp_path):
    rows, flow = mapped(tmp_path, Map(templates={"prompt": "Say {{ text }}"}))
    assert [r["prompt"] for r in rows] == ["Say 7", "Say one two", "Say x"]
    ((node, kind, reason),) = flow.tally.by_reason
    assert (node, kind) == ("map", "error")
    assert reason.startswith("templates.prompt: prints a null")


def test_a_template_takes_the_field_of_a_struct_and_prints_no_function(tmp_path):
    kind = pa.struct([("items", pa.list_(pa.int64())), ("get", pa.string())])
    source = Rows([{"s": {"items": [1, 2], "get": "x"}}], pa.schema([("s", kind)]))
    templates = {"a": "{{ s.items }} {{ s.get ~ '!' }}", "b": "{% for k in s.keys() %}{{ k }} {% endfor %}"}
    (row,) = Flow(tmp_path / "a", chain(source, map=Map(templates=templates))).run()
    assert (row["a"], row["b"]) == ("[1, 2] x!", "items get ")
    flow = Flow(tmp_path / "b", chain(source, map=Map(templates={"a": "{{ s.get.upper }}"})))
    assert flow.run() == []
    ((_, _, reason),) = flow.tally.by_reason
    assert reason == "templates.a: prints a function; call it: upper()"


def test_an_expression_that_fails_names_itself_and_honours_on_error(tmp_path):
    op = {"number": "CAST(text AS BIGINT)"}
    with pytest.raises(NodeFailed, match=r"node 'map' failed: ValueError: columns.number='CAST.*conversion"):
        mapped(tmp_path / "fail", Map(op))
    rows, flow = mapped(tmp_path / "reject", Map(op), OnError.REJECT)
    assert [(r["row"], r["number"]) for r in rows] == [(0, 7), (2, None)]
    assert flow.tally.errors == 2
    rows, _ = mapped(tmp_path / "try", Map({"number": "TRY_CAST(text AS BIGINT)"}))
    assert [r["number"] for r in rows] == [7, None, None, None]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4", 4.0),
        ("I give it 3.5 of them.", 3.5),
        ("First 2, then 5", 5.0),
        ("Score: 4/5", 4.0),
        ("3 out of 5.", 3.0),
        ("from 1-5", 5.0),
        ("4,000", None),
        ("1e3", None),
        ("20e-1", 2.0),
        ("1,5", None),
        ("3, 4", 4.0),
        ("4\u00bd", None),
        ("1.2.3", None),
        ("-1", None),
        ("none", None),
        ("", None),
    ],
)
def test_a_number_is_the_last_one_of_the_text_if_it_is_in_range(tmp_path: Path, text: str, number: float | None):
    op = Map(numbers={"score": {"template": "{{ text }}", "least": 1, "most": 5}})
    flow = Flow(tmp_path, chain(Rows([{"text": text, "n": 1}], SCHEMA), map=op))
    assert [r["score"] for r in flow.run()] == ([] if number is None else [number])
    reasons = [reason for _, _, reason in flow.tally.by_reason]
    assert reasons == ([] if number is not None else ["numbers.score: no number between N and N"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"numbers": {"a": {"template": "x"}}}, "numbers.a has the keys template; write {template"),
        ({}, "give columns, templates or numbers"),
        ({"columns": {"a": "n"}, "templates": {"a": "x"}}, "'a' is made twice"),
        ({"columns": {"row": "n"}}, "'row' says which row it is"),
        ({"columns": {"a": "max(n)"}}, "columns.a='max.n.' looks beyond its row"),
        ({"columns": {"a": "UNNEST(x)"}}, "looks beyond its row"),
        ({"columns": {"a": "n +"}}, "columns.a='n .' is not an expression in SQL"),
        ({"templates": {"a": "{{ n"}}, "templates.a, line 1"),
    ],
)
def test_what_cannot_work_is_refused_with_its_key(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Map(**arguments).plan(SCHEMA)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": {"a": "m + 1"}}, "columns.a='m . 1': unable to find column .m.; the columns are text, n"),
        ({"columns": {"a": "LENGTH(n)"}}, "columns.a=.* does not fit the columns"),
        ({"templates": {"a": "{{ m }}"}}, "templates.a uses 'm'; the columns are text, n"),
    ],
)
def test_what_does_not_fit_the_columns_is_refused(arguments, message):
    with pytest.raises(SchemaError, match=message):
        Map(**arguments).plan(SCHEMA)
