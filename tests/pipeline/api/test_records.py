"""Values of Arrow as Python has them: none is another one, and none raises."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from pipeline.api.records import ROW, Batch, python_rows, python_values
from tests.arrow_extremes import columns

COLUMNS = columns()
USUAL = "1970-01-01 00:00:00.000000Z"


@pytest.mark.parametrize("name", COLUMNS)
def test_a_value_is_that_of_arrow_or_a_text_and_can_be_written_as_a_reject(name):
    column = COLUMNS[name]
    found = python_values(column)
    for value, given in zip(found, column, strict=True):
        if pa.types.is_temporal(column.type) and not isinstance(value, str):
            assert pa.scalar(value, column.type).equals(given)
    if column.null_count:
        assert found[2] is None
    data = pa.record_batch([pa.array(range(4), ROW.type), column], ["row", "x"])
    if not pa.types.is_run_end_encoded(column.type) and "view" not in str(column.type):  # Arrow cannot take their rows
        rejects = Batch(0, data).reject(range(4), "why").rows
        assert [json.loads(reject.record or "").keys() for reject in rejects] == [{"x"}] * 4


@pytest.mark.parametrize(
    ("name", "texts"),
    {
        "timestamp[s, tz=Asia/Tokyo] near": ["0000-12-31 23:59:59Z", "9999-12-31 23:59:59Z"],
        "timestamp[us, tz=PST] near": ["0000-12-31 23:59:59.000000Z", "9999-12-31 23:59:59.000000Z", USUAL],
        "timestamp[s] after": ["0000-12-31 23:59:58", "10000-01-01 00:00:00"],
        "timestamp[us]": ["-9223372036854775808 us since 1970-01-01", "9223372036854775807 us since 1970-01-01"],
        "duration s": ["-9223372036854775808 s", "4611686018427387904 s"],
        "duration ns": ["-9223372036854775808 ns"],  # NaT for pandas
        "date32": ["-2147483648 days since 1970-01-01", "2147483647 days since 1970-01-01"],
        "date64": ["0000-12-31", "10000-01-01"],
        "time ns": ["23:59:59.999999999", "00:00:00.000000001"],  # Python has microseconds
    }.items(),
)
def test_what_python_cannot_hold_is_a_text_with_all_of_the_value(name, texts):
    assert [value for value in python_values(COLUMNS[name]) if isinstance(value, str)] == texts


def test_only_what_cannot_be_held_is_a_text_inside_of_lists_maps_structs_and_dictionaries():
    least = "-9223372036854775808 us since 1970-01-01"
    rows = python_rows(pa.record_batch({name: COLUMNS[name] for name in ("struct", "list of times", "map of times")}))
    assert rows[0] == {"struct": {"t": least, "n": 1}, "list of times": [least], "map of times": [("a", least)]}
    assert rows[3]["struct"]["t"].year == 1970
    assert python_values(COLUMNS["dictionary of times"])[0] == least
