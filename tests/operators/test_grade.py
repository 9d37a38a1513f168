"""Grade: each metric on single rows, what is a reject, and what is refused before a row is read."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from operators.grade import METRICS, Grade
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import ROW
from tests.operators.arrivals import Outcome, in_order

OPTIONS = ["red", "green", "B"]


def graded(expected: Any, answer: str | None, metric: str = "exact", /, **arguments: Any) -> Outcome:
    """What becomes of one row whose expected answer has the type that Arrow finds for it."""
    schema = pa.schema([ROW, ("expected", pa.array([expected]).type), ("completion", pa.string())])
    op = Grade(metric, **arguments)
    op.plan(schema)
    return Outcome().take(op, in_order([[{"row": 0, "expected": expected, "completion": answer}]], schema))


@pytest.mark.parametrize(
    ("metric", "expected", "answer", "right"),
    [
        ("exact", "Paris", " Paris\n", True),
        ("exact", "Paris", "paris", False),
        ("exact", ["Rome", None, "Paris"], "Paris", True),
        ("exact", 42, "42", True),
        *((metric, True, answer, True) for metric in ("exact", "contains") for answer in ("true", "True")),
        ("exact", True, "1", False),
        *((metric, 42.0, f"{n}", True) for metric in ("exact", "normalised", "contains") for n in (42, 42.0)),
        *((metric, 3.5, n, n == "3.5") for metric in ("exact", "contains") for n in ("3.5", "3")),
        ("exact", -0.5, "-0.5", True),
        ("normalised", "The Beatles", "beatles!", True),
        ("normalised", "The Beatles", "The Rolling Stones", False),
        ("number", "3 * 14 = 42\n#### 42", "So it is 42.0 apples.", True),
        ("number", 0.5, "1/2", True),
        ("number", [1, 2], "two", False),
        ("number", 0, "0", True),
        ("regex", r"(?i)\bparis\b", "It is PARIS.", True),
        ("regex", r"^Paris$", "It is Paris", False),
        ("contains", "Stra\u00dfe", "In the STRASSE.", True),
        ("contains", "Paris", "Rome", False),
        ("contains", " Paris\n", "Paris.", True),
        *((metric, "A", "A.", True) for metric in ("normalised", "f1")),
        *((metric, "A", answer, False) for metric in ("normalised", "f1") for answer in ("The", "An", "?!")),
        ("normalised", "?", "!", False),
        ("normalised", "the", "The", True),
        ("choice", "red", "red", True),
        ("choice", "A", "red", True),
        ("choice", "B", "B", True),  # the text of an option comes before the letter
        ("choice", "B", "green", False),
        ("choice", 1, "green", True),
        ("choice", 1.0, "green", True),
        ("choice", [0, 1], "green", True),
        ("judge", "is only looked at", "yes", True),
        ("regex", ".*", "", False),
        ("judge", "is only looked at", "no", False),
        *((metric, "1", answer, False) for metric in METRICS if metric != "choice" for answer in (None, "", " \n")),
    ],
)
def test_right_and_wrong(metric, expected, answer, right):
    (row,) = graded(expected, answer, metric, options=OPTIONS if metric == "choice" else None).rows.values()
    assert row["correct"] is right


def test_a_judge_goes_by_its_verdict_though_a_column_is_expected_for_its_prompt():
    for expected, verdict in (("yes", "no"), ("no", "yes")):
        (row,) = graded(expected, verdict, "judge", expected="expected").rows.values()
        assert row["correct"] is (verdict == "yes")


def test_f1_is_that_of_the_best_expected_answer_and_correct_is_as_normalised():
    for answer, correct, f1 in (("the big dog", True, 1.0), ("a dog", False, 2 / 3), (None, False, 0.0)):
        (row,) = graded(["cat", "big dog"], answer, "f1").rows.values()
        assert (row["correct"], row["f1"]) == (correct, pytest.approx(f1))


@pytest.mark.parametrize(
    ("extract", "answer", "right"),
    [
        (r"Answer: (\w+)", "Hm. Answer: Paris. Answer: Rome", True),
        (r"Par\w+", "It is Paris", True),
        (r"Answer: (\w+)", "Paris", False),
        (r"Answer: (\w+)", None, False),
    ],
)
def test_the_first_group_of_extract_is_compared(extract, answer, right):
    (row,) = graded("Paris", answer, extract=extract).rows.values()
    assert (row["correct"], row["completion"]) == (right, answer)


@pytest.mark.parametrize(
    ("metric", "expected", "says"),
    [
        ("exact", " ", "column 'expected' has no expected answer: it is null or empty"),
        ("exact", [None, ""], "has no expected answer"),
        ("judge", "", "has no expected answer"),
        ("number", "none", "column 'expected' has no number: 'none'"),
        ("number", ["1", "one"], "has no number: 'one'"),
        ("number", float("nan"), "has no number: 'NaN'"),
        ("regex", "(", "column 'expected' is no regular expression, '(': unclosed group"),
        ("choice", "blue", "has 'blue': no option, no letter and no place (from 0) of one of 3"),
        ("choice", "D", "has 'D'"),
        ("choice", "1", "has '1'"),  # from 0 or from 1?
        ("choice", 3, "has 3"),
        ("choice", -1, "has -1"),
        ("choice", 0.5, "has 0.5"),
        ("choice", True, "has True"),
    ],
)
@pytest.mark.parametrize("answer", ["1", None])
def test_what_cannot_be_graded_is_a_reject_that_says_why(metric, expected, answer, says):
    outcome = graded(expected, answer, metric, options=OPTIONS if metric == "choice" else None)
    assert not outcome.rows
    ((kind, reason),) = outcome.rejects.values()
    assert kind == "error"
    assert says in reason


def columns(*more: pa.Field) -> pa.Schema:
    return pa.schema([ROW, ("question", pa.string()), ("completion", pa.string()), *more])


def test_without_a_name_the_column_expected_is_taken_or_else_answer():
    both = columns(pa.field("answer", pa.string()), pa.field("expected", pa.string()))
    rows = [{"row": 0, "completion": "a", "answer": "b", "expected": "a"}]
    for schema, right in ((both, True), (both.remove(4), False)):
        op = Grade()
        op.plan(schema)
        (row,) = Outcome().take(op, in_order([rows], schema)).rows.values()
        assert row["correct"] is right


@pytest.mark.parametrize(
    ("arguments", "more", "says"),
    [
        ({}, [], "say with expected: NAME which column has the expected answers; there are row, question, completion"),
        ({"metric": "judge"}, [], "say with expected: NAME"),
        ({"expected": "gold"}, [], "needs a column 'gold'; the input has row, question, completion"),
        ({"answer": "reply"}, [], "needs a column 'reply'"),
        ({"metric": "judge", "answer": "question", "by": "subject"}, [], "needs a column 'subject'"),
        ({"by": "tags"}, [("tags", pa.list_(pa.string()))], "a group has one value"),
        ({}, [("answer", pa.struct([("text", pa.string())]))], "not texts, numbers or lists of them"),
        ({}, [("answer", pa.string()), ("correct", pa.bool_())], "would write the column 'correct'"),
        ({"metric": "choice", "options": "choices"}, [("choices", pa.string())], "which a CSV cannot hold"),
        ({}, [("answer", pa.decimal128(9, 2))], "a Map step before makes them"),
    ],
)
def test_columns_that_do_not_fit_are_named_before_a_row_is_read(arguments, more, says):
    with pytest.raises(SchemaError, match=re.escape(says)):
        Grade(**arguments).plan(columns(*[pa.field(*each) for each in more]))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"metric": "bleu"}, "it is one of exact, normalised"),
        ({"extract": "("}, "extract is no regular expression, '(': unclosed group"),
        ({"tolerance": -1.0}, "it is 0 or more"),
        ({"metric": "choice"}, "give both or neither"),
        ({"options": ["a", "b"]}, "give both or neither"),
    ],
)
def test_arguments_that_cannot_work(arguments, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        Grade(**arguments)
