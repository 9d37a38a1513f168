"""Filter: rows for which a condition is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from operators.filter import Filter
from pipeline.api.errors import ConfigError, SchemaError
from tests.operators.flow import Flow, Rows, chain

SCHEMA = pa.schema([("completion", pa.string()), ("n", pa.int64())])


def kept(tmp_path: Path, where: str, rows: list[dict[str, Any]]) -> tuple[list[int], dict[Any, int]]:
    flow = Flow(tmp_path, chain(Rows(rows, SCHEMA, chunk_rows=4, batch=3), filter=Filter(where)))
    return [row["row"] for row in flow.run()], flow.tally.by_reason


def test_false_and_null_are_filtered(tmp_path: Path) -> None:
    rows = [{"completion": c, "n": 1} for c in ("long enough", "no", None, "four")]
    where = "length(completion) > 3"
    assert kept(tmp_path, where, rows) == ([0, 3], {("filter", "filtered", f"where: {where}"): 2})


def test_all_and_none(tmp_path: Path) -> None:
    rows = [{"completion": "a", "n": i} for i in range(9)]
    assert kept(tmp_path, "n >= 0", rows)[0] == list(range(9))
    assert kept(tmp_path, "n < 0 OR completion IN ('b', 'c')", rows)[0] == []


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("lenght > 3", "unable to find column .lenght.; the columns are completion, n"),
        ("n", "gives Int64, not true or false"),
        ("length(n) > 3", "does not fit the columns"),
        ("completion > 3", "with numeric type .i32.; 'completion' has texts: data.types={completion: double} reads"),
        ("1 = 1", "names no column"),
        ('completion = "yes"', "find column .yes.; the columns are completion, n; a text takes single quotes: 'yes'"),
    ],
)
def test_what_does_not_fit_the_columns(where: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Filter(where).plan(SCHEMA)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("n >", "not an expression in SQL"),
        ("n >> 3", "PGBitwiseShiftRight is not currently supported$"),
        ("n > avg (n)", "beyond its row with 'avg"),
        ("row_number() OVER (ORDER BY n) > 1", "beyond its row"),
        ("n > (SELECT 1)", "beyond its row"),
        ("row_number() > n", "beyond its row with 'row_number"),
        ("STRING_AGG(completion, ',') = 'a'", "beyond its row with 'STRING_AGG"),
        ("LAST_VALUE(n) > 1", "beyond its row with 'LAST_VALUE"),
        ("now() > '2026-01-01'::timestamp AND n > 1", r"looks at the clock with 'now\('"),
        (" AND ".join(["n > 1"] * 1001), r"where has 1,001 terms joined by AND and OR, and 1,000 may be; .*IN"),
        ("lpad(completion, 2000000000, 'x') = 'a'", "pads texts to 2000000000 characters"),
        ("n > 1 AND CURRENT_DATE > DATE('2026-01-31')", "looks at the clock with 'CURRENT_DATE'.* write the date out"),
    ],
)
def test_what_is_no_condition_on_a_row(where: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Filter(where).plan(SCHEMA)


def test_words_in_quotes_are_no_functions(tmp_path: Path) -> None:
    rows = [{"completion": c, "n": 1} for c in ("max(1)", "over")]
    assert kept(tmp_path, "completion <> 'max(1)' -- not that", rows)[0] == [1]
