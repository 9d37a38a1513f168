"""Gather: samples in one row; Pairs: the better and the worse of them."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from operators.explode import Explode
from operators.gather import Gather, Pairs
from operators.union import Union
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import LINEAGE, ROW, Batch, Rejects
from pipeline.dataflow.graph import Node
from tests.operators.arrivals import Outcome, Row, in_order
from tests.operators.flow import Flow, Rows, chain

SAMPLES = pa.schema([ROW, LINEAGE, ("prompt", pa.string()), ("answer", pa.string()), ("x", pa.float64())])


def outcome(op: Any, rows: list[Row], schema: pa.Schema = SAMPLES) -> Outcome:
    planned = op.plan(schema)
    found = Outcome().take(op, in_order([rows], schema))
    assert all(list(row) == planned.names for row in found.rows.values())
    assert len(rows) + found.expanded == len(found.rows) + len(found.rejects)
    return found


def sample(row: int, lineage: list[int] | None, answer: Any, x: float | None = 1.0) -> Row:
    return {"row": row, "lineage": lineage, "prompt": f"p{row}", "answer": answer, "x": x}


def test_samples_become_lists_in_the_order_of_their_number_and_lose_it():
    rows = [sample(1, [0, 10], "c"), sample(0, [1], "b"), sample(1, [0, 2], "b"), sample(0, [0], "a"),
            sample(1, [1, 0], None), sample(2, [4], "lone")]  # fmt: skip
    found = outcome(Gather(["answer"]), rows)
    assert found.rows == {
        (0, ()): sample(0, None, ["a", "b"]),
        (1, (0,)): sample(1, [0], ["b", "c"]),
        (1, (1,)): sample(1, [1], [None]),
        (2, ()): sample(2, None, ["lone"]),
    }


def test_what_explode_has_made_gather_puts_together(tmp_path):
    schema = pa.schema([("id", pa.string()), ("items", pa.list_(pa.list_(pa.int64())))])
    rows: list[Row] = [{"id": "a", "items": [[1], [], [2, 3]]}, {"id": "b", "items": [[4]]}, {"id": "c", "items": []}]
    flow = Flow(tmp_path, chain(Rows(rows, schema, batch=1), apart=Explode("items"), whole=Gather(["items"])))
    assert [(row["row"], row["lineage"], row["items"]) for row in flow.run()] == [
        (0, None, [[1], [], [2, 3]]),
        (1, None, [[4]]),
    ]


def test_branches_are_gathered_in_the_order_of_the_inputs_of_their_union(tmp_path):
    nodes = chain(Rows([{"items": [i]} for i in range(40)], pa.schema([("items", pa.list_(pa.int64()))])))
    nodes |= {
        "both": Node(Union(), ("source", "source"), capacity_rows=3),
        "twice": Node(Union(), ("both", "source"), capacity_rows=3),
        "inner": Node(Gather(["items"]), ("twice",)),
        "whole": Node(Gather(["items"]), ("inner",)),
    }
    rows = Flow(tmp_path, nodes).run()
    assert [(row["row"], row["lineage"], row["items"]) for row in rows] == [(i, None, [[[i]]] * 3) for i in range(40)]


def test_a_column_that_differs_rejects_each_sample_and_names_the_remedy():
    rows = [sample(0, [0], "a", 1.0), sample(0, [1], "b", 2.0), sample(1, [0], "c"), sample(1, [1], "d")]
    found = outcome(Gather(["answer"]), rows)
    why = ("error", "its samples differ in x; gather that too, or take it out before with Select (drop)")
    assert found.rejects == {(0, (0,)): why, (0, (1,)): why}
    assert list(found.rows) == [(1, ())]


@pytest.mark.parametrize("x", [math.nan, None, -0.0])
def test_values_that_are_alike_do_not_differ(x):
    found = outcome(Gather(["answer"]), [sample(0, [0], "a", x), sample(0, [1], "b", x)])
    assert not found.rejects


def test_null_is_not_nan():
    found = outcome(Gather(["answer"]), [sample(0, [0], "a", None), sample(0, [1], "b", math.nan)])
    assert len(found.rejects) == 2


@pytest.mark.parametrize(
    ("columns", "schema", "error", "message"),
    [
        (
            ["answer"],
            pa.schema([ROW, ("answer", pa.string())]),
            SchemaError,
            "there are no samples to gather; sampling.n=2",
        ),
        (["nothing"], SAMPLES, SchemaError, "needs a column 'nothing'"),
        ([], SAMPLES, ConfigError, "name one or more, each once"),
        (["a", "a"], SAMPLES, ConfigError, "each once"),
        (["row"], SAMPLES, ConfigError, "'row' says which row it is"),
    ],
)
def test_a_gather_that_cannot_work_is_refused(columns, schema, error, message):
    with pytest.raises(error, match=message):
        Gather(columns).plan(schema)


LISTS = {"answers": pa.list_(pa.string()), "scores": pa.list_(pa.float32())}
LISTED = pa.schema([ROW, ("id", pa.string()), ("prompt", pa.string()), *LISTS.items()])
MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("name", pa.string())]))
NOT_ENOUGH = ("filtered", "fewer than two texts have a score")


def listed(answers: Any, scores: Any, prompt: Any = "p") -> Row:
    return {"row": 0, "id": "i", "prompt": prompt, "answers": answers, "scores": scores}


def pairs(**kwargs: Any) -> Pairs:
    return Pairs("answers", "scores", **kwargs)


def message(role: str, content: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


def test_a_pair_is_in_the_format_of_trl():
    found = outcome(pairs(), [listed(["bad", "good", "fair"], [0.25, 1.0, 0.5])], LISTED)
    assert found.rows == {
        (0, ()): {
            "row": 0,
            "id": "i",
            "prompt": message("user", "p"),
            "chosen": message("assistant", "good"),
            "rejected": message("assistant", "bad"),
            "score_chosen": 1.0,
            "score_rejected": 0.25,
        }
    }


@pytest.mark.parametrize(
    ("answers", "scores", "expected"),
    [
        ("abc", [1, 2, 3], ("c", "a", 3, 1)),
        ("abcd", [2, 1, 2, 1], ("a", "b", 2, 1)),
        ("abc", [None, 5, math.nan], NOT_ENOUGH),
        (["a", None, "c"], [1, 9, 2], ("c", "a", 2, 1)),
        ("abc", [math.inf, 1, -math.inf], ("a", "c", math.inf, -math.inf)),
        ("abc", [1, 1, 1], ("filtered", "all scores are equal")),
        (["x", "y", "x"], [2, 1, 0], ("filtered", "the texts with the highest and the lowest score are equal")),
        ("abc", [1, 2], ("error", "answers has 3 texts and scores 2 scores")),
        (None, None, NOT_ENOUGH),
        ([], [], NOT_ENOUGH),
    ],
)
def test_the_highest_is_chosen_and_the_lowest_rejected_and_of_equal_ones_the_first(answers, scores, expected):
    answers = list(answers) if isinstance(answers, str) else answers
    found = outcome(pairs(format="text"), [listed(answers, scores)], LISTED)
    names = ("chosen", "rejected", "score_chosen", "score_rejected")
    told = [*found.rejects.values(), *(tuple(row[name] for name in names) for row in found.rows.values())]
    assert told == [expected]


def test_a_margin_is_the_least_difference():
    rows = [{**listed(["a", "b"], [0, x]), "row": i} for i, x in enumerate([1, 2, 3])]
    found = outcome(pairs(margin=2), rows, LISTED)
    assert [row for row, _ in found.rows] == [1, 2]
    assert found.rejects == {(0, ()): ("filtered", "the scores lie less than margin=2 apart")}


def test_plain_columns_with_verdicts_make_pairs_too():
    columns = {"small": pa.string(), "large": pa.string(), "small_right": pa.bool_(), "large_right": pa.int8()}
    schema = pa.schema([ROW, ("prompt", pa.string()), *columns.items()])
    row = {"row": 0, "prompt": "p", "small": "s", "large": "l", "small_right": False, "large_right": 1}
    op = Pairs(["small", "large"], ["small_right", "large_right"], format="text")
    found = outcome(op, [row], schema)
    made = {"prompt": "p", "chosen": "l", "rejected": "s", "score_chosen": 1.0, "score_rejected": 0.0}
    assert found.rows == {(0, ()): {"row": 0, **made}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "u", "name": "n"}], None),
        ([{"role": "user", "content": "u"}, {"role": "assistant", "content": "Well,"}], None),
        ([{"role": "system", "content": "s"}], "the messages of talk end with one that is not by user or assistant"),
        ([{"role": "user", "content": None}], "message 0 of column 'talk' has no content"),
        ([], "column 'talk' has no messages"),
        (None, "the prompt, column talk, is null"),
    ],
)
def test_a_prompt_may_be_messages(given, expected):
    schema = pa.schema([ROW, ("talk", MESSAGES), *LISTS.items()])
    row = {"row": 0, "talk": given, "answers": ["a", "b"], "scores": [1, 0]}
    found = outcome(pairs(prompt="talk"), [row], schema)
    if expected is None:
        ((_, made),) = found.rows.items()
        assert made["prompt"] == [{"role": m["role"], "content": m["content"]} for m in given]
        assert "talk" not in made
    else:
        (((kind, reason)),) = found.rejects.values()
        assert kind == "error"
        assert reason.startswith(expected)


def with_column(name: str, kind: pa.DataType) -> pa.Schema:
    others = [field for field in LISTED if field.name != name]
    return pa.schema([*others, (name, kind)])


@pytest.mark.parametrize(
    ("op", "schema", "error"),
    [
        (pairs(prompt="question"), LISTED, "needs a column 'question'"),
        (
            pairs(),
            with_column("answers", pa.string()),
            "'answers' has type string; it must hold lists of texts: put Gather",
        ),
        (pairs(), with_column("scores", pa.list_(pa.string())), "it must hold lists of numbers or booleans"),
        (Pairs(["id", "answers"], ["id", "id"]), LISTED, "'answers' has type list<.*>; it must hold texts"),
        (pairs(), with_column("prompt", pa.int64()), "a prompt is a text or messages, list<struct<role"),
        (pairs(format="text"), with_column("prompt", MESSAGES), "a prompt is a text$"),
        (pairs(), with_column("chosen", pa.string()), r"would write the column 'chosen'.*\(drop: \[chosen\]\)"),
        (pairs(), with_column("completion", pa.string()), r"not what TRL takes for pairs.*\(drop: \[completion\]\)"),
    ],
)
def test_what_does_not_fit_the_columns_is_refused(op, schema, error):
    with pytest.raises(SchemaError, match=error):
        op.plan(schema)


def test_texts_in_columns_may_have_their_scores_in_a_list():
    schema = pa.schema(
        [ROW, ("prompt", pa.string()), ("x", pa.string()), ("y", pa.string()), ("s", pa.list_(pa.int64()))]
    )
    op = Pairs(["x", "y"], "s", format="text")
    op.plan(schema)
    rows = [{"row": i, "prompt": "p", "x": "X", "y": "Y", "s": s} for i, s in enumerate(([1, 5], [2], None))]
    outputs = list(op.process(Batch(0, pa.RecordBatch.from_pylist(rows, schema))))
    kept = [r for o in outputs if isinstance(o, Batch) for r in o.data.to_pylist()]
    reasons = {r.row: r.reason for o in outputs if isinstance(o, Rejects) for r in o.rows}
    assert [(r["chosen"], r["rejected"], r["score_chosen"]) for r in kept] == [("Y", "X", 5.0)]
    assert reasons == {1: "x, y has 2 texts and s 1 scores", 2: "x, y has 2 texts and s 0 scores"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"texts": "a", "scores": ["b"]}, "do not belong together"),
        ({"texts": ["a", "b", "c"], "scores": ["d", "e"]}, "do not belong together"),
        ({"texts": ["a", "b"], "scores": ["c"]}, "do not belong together"),
        ({"texts": ["a"], "scores": ["c"]}, "do not belong together"),
        ({"texts": "a", "scores": "row"}, "'row' says which row it is"),
        ({"texts": "a", "scores": "b", "margin": -1}, "margin=-1 cannot work: it is 0 or more"),
        ({"texts": "a", "scores": "b", "format": "hf"}, "format='hf' cannot work: it is one of trl, text"),
    ],
)
def test_pairs_that_cannot_work_are_refused(arguments, error):
    with pytest.raises(ConfigError, match=error):
        Pairs(**arguments)
