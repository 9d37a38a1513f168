"""What SQL computes with whole numbers is what they are, or an error: nothing wraps around, and no quotient is cut."""

from __future__ import annotations

import datetime
import operator
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.map import Map
from operators.rows.sql import RowExpression
from pipeline.api.records import Batch

WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
ROW: dict[str, Any] = {"t": "ab", "long": "abcde", "tags": [1, 2], "day": datetime.date(2024, 12, 31), "s": {"n": 100}}
ROW |= {"n": 100, "u": 1, "x": 1.5, "seed": 1 << 62, "digits": "42", "prompt": "word " * 60}
SCHEMA = pa.schema(
    {"t": pa.string(), "long": pa.string(), "tags": pa.list_(pa.int8()), "day": pa.date32()}
    | {
        "s": pa.struct({"n": pa.int8()}),
        "n": pa.int8(),
        "u": pa.uint64(),
        "x": pa.float64(),
        "seed": pa.int64(),
        "digits": pa.string(),
        "prompt": pa.string(),
    }
)


def computed(sql: str, row: dict[str, Any], schema: pa.Schema) -> tuple[Any, pa.DataType]:
    expression = RowExpression("columns.a", sql)
    kind = expression.plan(schema, lambda kind: kind != pl.Null, "a number")
    values = expression.values(pa.RecordBatch.from_pylist([row], schema)).to_arrow()
    assert values.type == kind
    return values[0].as_py(), kind


def extremes(kind: pa.DataType) -> st.SearchStrategy[int]:
    bits, signed = kind.bit_width, pa.types.is_signed_integer(kind)
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return st.sampled_from([least, least + 1, 0, 1, most - 1, most]) | st.integers(least, most)


@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from(WHOLE), st.sampled_from(WHOLE), st.sampled_from(list(SIGNS)))
def test_a_sum_or_product_of_two_columns_is_right_or_an_error(data, first, second, sign):
    a, b = data.draw(extremes(first)), data.draw(extremes(second))
    schema, right = pa.schema([("a", first), ("b", second)]), SIGNS[sign](a, b)
    expression = RowExpression("columns.c", f"a {sign} b")
    kind = expression.plan(schema, lambda kind: kind.is_integer(), "a whole number")
    least, most = (0, (1 << 64) - 1) if kind == pa.uint64() else (-(1 << 63), (1 << 63) - 1)
    rows = pa.RecordBatch.from_pylist([{"a": a, "b": b}], schema)
    if least <= right <= most:
        assert expression.values(rows).to_list() == [right]
    else:
        with pytest.raises(ValueError, match=r"a whole number beyond U?Int64|whole numbers too large"):
            expression.values(rows)
    if abs(right) < 1 << 127:
        assert computed(f"a {sign} b < 0", {"a": a, "b": b}, schema)[0] is (right < 0)
    else:
        with pytest.raises(ValueError, match="whole numbers too large to compute with"):
            computed(f"a {sign} b < 0", {"a": a, "b": b}, schema)


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("LENGTH(t) - LENGTH(long)", -3),
        ("-LENGTH(t)", -2),
        ("ARRAY_LENGTH(tags) - 5", -3),
        ("STRPOS(long, 'z') - 1", -1),
        ("POSITION('c' IN long) - 5", -2),
        ("EXTRACT(MONTH FROM day) * 100 + EXTRACT(DAY FROM day)", 1231),
        ("DATE_PART('year', day) * 10000000", 20240000000),
        ("CAST(n AS SMALLINT) * 1000", 100000),
        ("n::SMALLINT * 1000 -- wide\n", 100000),
        ("CASE WHEN n > 1 THEN LENGTH(t) - 3 ELSE n * n END", -1),
        ("COALESCE(NULLIF(LENGTH(t), 2), 0) - 1", -1),
        ("s.n * 100 + tags[2] * 100", 10200),
        ("POW(n, 3)", 1000000),
        ("LENGTH(CONCAT(t, '- 5')) - 9", -4),
        ("LENGTH(t) * LENGTH(t) * LENGTH(t) * LENGTH(long) * LENGTH(long) * LENGTH(long) * LENGTH(long) * n", 500000),
        ("n * 2 + /* 1.5 */ 0", 200),
        ("CAST(digits AS BIGINT) * LENGTH(prompt) * LENGTH(prompt) + CAST(x AS INT)", 42 * 300 * 300 + 1),
        ("u - 2 + n", 99),
        ("seed * 31 * 7 % 1000003", (1 << 62) * 217 % 1000003),
        ("n / 0.3", 100 / 0.3),
        ("1.0 / 3 + n * 0", 1 / 3),
        ("n * 0.5", Decimal("50.0")),
        ("x * 0.1", 1.5 * 0.1),
        ("CAST(x AS DECIMAL(20, 2)) / 3.0", Decimal("0.500000")),
    ],
)
def test_what_functions_and_casts_give_is_computed_with_in_full(sql, value):
    found, kind = computed(sql, ROW, SCHEMA)
    assert found == pytest.approx(value, rel=1e-15) if isinstance(value, float) else found == value
    assert pa.types.is_floating(kind) is isinstance(value, float)
    assert kind == pa.int64() or not isinstance(value, int)


def test_what_computes_nothing_keeps_its_type():
    for sql, kind in {"n": pa.int8(), "u": pa.uint64(), "LENGTH(t)": pa.uint32(), "COALESCE(u, n)": pa.int64()}.items():
        assert computed(sql, ROW, SCHEMA)[1] == kind


def test_decimals_of_a_column_or_by_name_stay_decimals():
    kind = pa.decimal128(38, 2)
    schema = pa.schema([("row", pa.int64()), ("price", kind), ("n", pa.int64())])
    op = Map({"same": "price", "cast": "CAST(n AS DECIMAL(20, 1))", "half": "n * 0.5"})
    planned = op.plan(schema)
    assert planned.types[3:] == [kind, pa.decimal128(20, 1), pa.float64()]
    price = Decimal("123456789012345678901234.12")
    data = pa.RecordBatch.from_pylist([{"row": 0, "price": price, "n": 3}], schema)
    (out,) = op.process(Batch(0, data))
    assert isinstance(out, Batch)
    assert out.data.to_pylist()[0] | {"row": 0} == {
        "row": 0, "price": price, "n": 3, "same": price, "cast": Decimal("3.0"), "half": 1.5
    }  # fmt: skip


def test_large_numbers_of_some_rows_do_not_stop_others():
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])
    rows = [{key: 1 if key == small else 1 << 62 for key in "abc"} for small in "abc"]
    expression = RowExpression("columns.d", "a * b * c > 0")
    expression.plan(schema, lambda kind: kind == pl.Boolean, "true or false")
    assert expression.values(pa.RecordBatch.from_pylist(rows, schema)).to_list() == [True] * 3
