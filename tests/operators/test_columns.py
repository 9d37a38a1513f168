"""Select and Rename: which columns there are, and under which names."""

from __future__ import annotations

import pyarrow as pa
import pytest

from operators.columns import Rename, Select
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import LINEAGE, ROW, Batch

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ROW, LINEAGE])
DATA = pa.record_batch([[1, 2], ["x", "y"], [5, 6], [[0], [1]]], schema=SCHEMA)


def made(op):
    schema = op.plan(SCHEMA)
    (batch,) = op.process(Batch(0, DATA))
    assert batch.data.schema.equals(schema)
    return batch.data.to_pydict()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"columns": ["b"]}, ["row", "lineage", "b"]),
        ({"columns": ["b", "row", "a"]}, ["lineage", "b", "row", "a"]),
        ({"columns": []}, ["row", "lineage"]),
        ({"drop": ["b"]}, ["a", "row", "lineage"]),
    ],
)
def test_select_keeps_row_and_lineage_whatever_is_named(arguments, names):
    assert list(made(Select(**arguments))) == names


def test_rename_keeps_values_and_places_and_may_swap():
    assert made(Rename({"a": "b", "b": "c"})) == {"b": [1, 2], "c": ["x", "y"], "row": [5, 6], "lineage": [[0], [1]]}
    assert list(made(Rename({"a": "b", "b": "a"}))) == ["b", "a", "row", "lineage"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Select(), "give columns, .*, or drop"),
        (lambda: Select(["a"], ["b"]), "give columns, .*, or drop"),
        (lambda: Select(drop=["row"]), "'row' says which row it is; .* cannot be dropped"),
        (lambda: Select(["a", "a"]), "'a' is named twice"),
        (lambda: Rename({}), "columns is empty"),
        (lambda: Rename({"row": "a"}), "'row' says which row it is"),
        (lambda: Rename({"a": "lineage"}), "'lineage' says which row it is"),
        (lambda: Rename({"a": "z", "b": "z"}), "'z' is named twice"),
    ],
)
def test_what_cannot_work_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Select(["z"]), "needs a column 'z'; the input has a, b"),
        (Select(drop=["z"]), "needs a column 'z'"),
        (Rename({"z": "y"}), "needs a column 'z'"),
        (Rename({"a": "b"}), r"there is a column 'b' already, so 'a' cannot become that.*drop: \[b\]"),
    ],
)
def test_what_does_not_fit_the_columns_is_refused(op, message):
    with pytest.raises(SchemaError, match=message):
        op.plan(SCHEMA)
