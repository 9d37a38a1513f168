"""Assign: which split a row gets, and what does not change it."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from operators.assign import Assign
from operators.rows import groups
from operators.settings import DataSettings
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import LINEAGE, ROW, Batch
from tests.operators.arrivals import Row, batch, in_order

SCHEMA = pa.schema([ROW, ("id", pa.string())])


def assigned(op: Assign, ids: Sequence[str | None], cut: int = 1000) -> dict[str | None, str]:
    """The split of each id; one that is on two sides fails."""
    op.plan(SCHEMA)
    rows = [{"row": i, "id": each} for i, each in enumerate(ids)]
    found: dict[str | None, str] = {}
    for item in in_order([rows[i : i + cut] for i in range(0, len(rows), cut)], SCHEMA):
        for out in op.process(item) if isinstance(item, Batch) else ():
            assert isinstance(out, Batch)
            for row in out.data.to_pylist():
                assert found.setdefault(row["id"], row["split"]) == row["split"]
    return found


def number(values: list[Any], seed: int = 0) -> float:
    """As the page of the operator has it."""
    digest = hashlib.blake2b(f"{seed}|{json.dumps(values)}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@given(ids=st.lists(st.none() | st.text(max_size=5), max_size=30), seed=st.integers(0, 3))
@hypothesis_settings(deadline=None, max_examples=25)
def test_the_split_is_that_of_the_documented_number(ids, seed):
    found = assigned(Assign({"train": 0.5, "dev": 0.2, "test": 0.3}, "id", split_seed=seed), ids)
    for each, split in found.items():
        at = number([each], seed)
        assert split == ("train" if at < 0.5 else "dev" if at < 0.7 else "test")


def test_shares_are_within_binomial_bounds_and_neither_order_nor_rows_that_are_added_move_a_group():
    ids = [f"id-{i}" for i in range(100_000)]
    shares = {"train": 0.9, "validation": 0.02, "test": 0.08}
    found = assigned(Assign(shares, "id"), ids)
    for name, share in shares.items():
        rows = sum(split == name for split in found.values())
        assert abs(rows - share * len(ids)) < 5 * (len(ids) * share * (1 - share)) ** 0.5
    few = random.Random(0).sample(ids, 5000)
    assert assigned(Assign(shares, "id"), few, cut=77) == {each: found[each] for each in few}


def test_a_split_that_is_added_at_the_end_takes_from_the_last_one_alone():
    ids = [f"id-{i}" for i in range(5000)]
    before = assigned(Assign({"train": 0.9, "test": 0.1}, "id"), ids)
    after = assigned(Assign({"train": 0.9, "test": 0.05, "validation": 0.05}, "id"), ids)
    moved = {each for each in ids if before[each] != after[each]}
    assert {(before[each], after[each]) for each in moved} == {("test", "validation")}
    assert 0.3 < len(moved) / sum(split == "test" for split in before.values()) < 0.7
    assert assigned(Assign({"train": 0.9, "test": 0.1}, "id", split_seed=1), ids) != before


def test_the_texts_of_groups_are_the_same_in_every_version():
    """Another text would move groups from train to test where a dataset grows."""
    kinds = {"a": pa.string(), "n": pa.int64(), "f": pa.float64(), "b": pa.binary(), "d": pa.date32()}
    kinds |= {"t": pa.timestamp("us", "UTC"), "m": pa.decimal128(5, 2), "s": pa.struct({"x": pa.list_(pa.bool_())})}
    values = ['é"\n', -3, 0.1, b"\xff\x00", date(2026, 1, 2), 1, Decimal("1.50"), {"x": [True, None]}]
    data = pa.RecordBatch.from_pylist([dict(zip(kinds, values, strict=True)), {}], pa.schema(kinds))
    assert groups.group_texts(data, [*kinds]) == [
        '["\\u00e9\\"\\n", -3, 0.1, "ff00", "2026-01-02", "1970-01-01 00:00:00.000001+00:00", "1.50",'
        ' {"x": [true, null]}]',
        "[null, null, null, null, null, null, null, null]",
    ]


def test_the_ids_of_the_job_are_the_groups_where_no_column_is_given():
    ids = [f"id-{i % 50}" for i in range(200)]
    shares = {"a": 0.5, "b": 0.5}
    assert assigned(Assign(shares, data=DataSettings(id_column="id")), ids) == assigned(Assign(shares, "id"), ids)


def test_samples_of_a_row_stay_together_where_no_column_is_given():
    schema = pa.schema([ROW, LINEAGE])
    op = Assign({"a": 0.5, "b": 0.5})
    op.plan(schema)
    rows = [{"row": i // 4, "lineage": [i % 4]} for i in range(400)]
    (out,) = op.process(batch(0, rows, schema))
    assert isinstance(out, Batch)
    by_row = [set(out.data.column("split").to_pylist()[i : i + 4]) for i in range(0, 400, 4)]
    assert {len(splits) for splits in by_row} == {1}
    assert {*by_row[0], *by_row[1], *by_row[2], *by_row[3], *by_row[4]} == {"a", "b"}


def test_rows_without_a_group_are_told():
    op = Assign({"train": 1}, ["id", "other"], "part")
    schema = SCHEMA.append(pa.field("other", pa.int64()))
    op.plan(schema)
    rows: list[Row] = [{"row": 5}, {"row": 6, "id": "x"}, {"row": 7, "other": 1}, {"row": 8}]
    (out,) = op.process(batch(0, rows, schema))
    assert isinstance(out, Batch)
    assert out.told == tuple((row, "id, other is null: such rows are one group, part=train") for row in (5, 8))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"split": {}}, "split=.* cannot work: it maps names to shares: {train: 0.9, test: 0.1}"),
        ({"split": {"train": 0.9}}, "the shares sum to 0.9, which is 0.1 less than 1"),
        ({"split": {"train": 0.9, "test": 0.101}}, "the shares sum to 1.001, which is 0.001 more than 1"),
        ({"split": {"train": 1, "test": 0}}, "split.test=0 cannot work: it is a share"),
        ({"split": {"train": float("nan")}}, "it is a share"),
        ({"split": {"my train": 1.0}}, "split='my train' cannot work: the name of a split has letters, digits and _"),
        ({"split": {"all": 1.0}}, "and not `all`"),
        ({"split": {"Test": 0.5, "test": 0.5}}, "'Test' and 'test' would be one file on some disks"),
        ({"split": {"train": 1}, "column": "lineage"}, "cannot be assigned"),
    ],
)
def test_what_cannot_work_is_refused(arguments, says):
    with pytest.raises(ConfigError, match=says):
        Assign(**arguments)


def test_columns_that_are_missing_or_there_already_are_named():
    with pytest.raises(SchemaError, match="needs a column 'topic'"):
        Assign({"train": 1}, "topic").plan(SCHEMA)
    with pytest.raises(SchemaError, match="would write the column 'id', which the input has already"):
        Assign({"train": 1}, column="id").plan(SCHEMA)


def test_thirds_sum_to_1_and_the_order_of_splits_counts_as_a_setting():
    third = 1 / 3
    Assign({"a": third, "b": third, "c": third})
    Assign({"a": 0.7, "b": 0.2, "c": 0.1})
    one, other = Assign({"a": 0.5, "b": 0.5}), Assign({"b": 0.5, "a": 0.5})
    assert one.fingerprint() != other.fingerprint()
