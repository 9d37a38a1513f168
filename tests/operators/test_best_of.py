"""BestOf: which samples stay, whatever the order in which they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from operators.best_of import BestOf, Majority
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import ROW, Batch, ChunkEnd
from tests.operators.flow import Flow, Rows, chain

LINEAGE = pa.field("lineage", pa.list_(pa.int32()))


class Samples(Rows):
    """A source that gives rows their number and chunk as they say, in the order given."""

    def run(self, inbox):
        for chunk in range(1 + max(row["row"] // 4 for row in self.rows)):
            for row in self.rows:
                if row["row"] // 4 == chunk:
                    yield Batch(chunk, pa.RecordBatch.from_pylist([row], schema=self.schema))
            yield ChunkEnd(chunk, len([row for row in self.rows if row["row"] // 4 == chunk]))


def best(tmp_path, rows: list[dict[str, Any]], field: pa.Field, **kwargs: Any) -> tuple[list[Any], Flow]:
    source = Samples(rows, pa.schema([LINEAGE, field]))
    run = Flow(tmp_path, chain(source, best=BestOf(by=field.name, **kwargs)))
    return [(row["row"], row["lineage"]) for row in run.run()], run


def samples(values: Mapping[Any, Any], name: str = "score") -> list[dict[str, Any]]:
    return [{"row": row, "lineage": list(lineage), name: value} for (row, *lineage), value in values.items()]


NUMBER = pa.field("score", pa.float64())
SCORES = {
    (0, 0): -3.0, (0, 1): -1.0, (0, 2): -2.0,
    (1, 0): -1.0, (1, 1): -1.0,
    (2, 0): None, (2, 1): float("nan"),
    (3, 0): None, (3, 1): -9.0,
    (5, 0): -2.0,
}  # fmt: skip


def test_the_highest_stays_and_of_equal_ones_the_earlier(tmp_path):
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(len(SCORES))
        rows = [samples(SCORES)[i] for i in order]
        kept, run = best(tmp_path / str(seed), rows, NUMBER)
        assert kept == [(0, [1]), (1, [0]), (2, [0]), (3, [1]), (5, [0])]
        assert (run.tally.errors, run.tally.filtered) == (0, 5)


def test_whole_numbers_that_a_double_does_not_tell_apart_are(tmp_path):
    rows = samples({(0, i): (1 << 53) + i for i in range(2)})
    assert best(tmp_path, rows, pa.field("score", pa.int64()))[0] == [(0, [1])]


def test_several_can_stay(tmp_path):
    kept, run = best(tmp_path, samples(SCORES), NUMBER, keep=2)
    assert kept == [(0, [1]), (0, [2]), (1, [0]), (1, [1]), (2, [0]), (2, [1]), (3, [0]), (3, [1]), (5, [0])]
    assert (run.tally.errors, run.tally.filtered) == (0, 1)


def test_of_a_list_the_mean_counts(tmp_path):
    lists = {(0, 0): [-1.0, -5.0], (0, 1): [-2.9], (0, 2): [], (0, 3): None, (0, 4): [None, -2.95], (0, 5): [-np.inf]}
    kept, _ = best(tmp_path, samples(lists), pa.field("score", pa.list_(pa.float32())), keep=3)
    assert kept == [(0, [0]), (0, [1]), (0, [4])]


def test_only_the_last_number_of_the_lineage_tells_samples_apart(tmp_path):
    values = {(0, 0, 0): 1.0, (0, 0, 1): 2.0, (0, 1, 0): 5.0, (0, 1, 1): 4.0}
    kept, _ = best(tmp_path, samples(values), NUMBER)
    assert kept == [(0, [0, 1]), (0, [1, 0])]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([NUMBER]), "sampling.n=2"),
        (pa.schema([LINEAGE]), "needs a column 'score'"),
        (pa.schema([LINEAGE, ("score", pa.string())]), "must be a number or a list of numbers"),
        (pa.schema([LINEAGE, ("score", pa.list_(pa.string()))]), "must be a number or a list of numbers"),
    ],
)
def test_columns_that_cannot_work(schema, message):
    with pytest.raises(SchemaError, match=message):
        BestOf(by="score").plan(schema)


def test_losers_can_be_dropped_without_a_reject_each(tmp_path):
    kept, run = best(tmp_path, samples(SCORES), NUMBER, losers="drop")
    assert kept == [(0, [1]), (1, [0]), (2, [0]), (3, [1]), (5, [0])]
    assert (run.tally.errors, run.tally.filtered) == (0, 0)
    (meter,) = [meter for meter in run.executor.meters if meter.name == "best"]
    assert (meter.rows_in, meter.expanded, meter.rejected, meter.rows_out) == (10, -5, 0, 5)


VOTES = {
    (0, 0): "a", (0, 1): "b", (0, 2): "b", (0, 3): None,
    (1, 0): "b", (1, 1): "a", (1, 2): "a", (1, 3): "b",
    (2, 0): None, (2, 1): None,
    (3, 0, 4): "a", (3, 1, 0): "b", (3, 1, 1): "b",
}  # fmt: skip


@pytest.mark.parametrize(("losers", "filtered"), [("reject", 9), ("drop", 2)])
def test_the_majority_is_the_first_of_the_most_frequent_value(tmp_path, losers, filtered):
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(len(VOTES))
        rows = [samples(VOTES, "answer")[i] for i in order]
        source = Samples(rows, pa.schema([LINEAGE, ("answer", pa.string())]))
        vote = Majority("answer", as_="answer", losers=losers)
        run = Flow(tmp_path / str(seed), chain(source, vote=vote))
        assert [tuple(row.values()) for row in run.run()] == [
            (0, [1], "b", 2, 4),
            (1, [0], "b", 2, 4),
            (3, [0, 4], "a", 1, 1),
            (3, [1, 0], "b", 2, 2),
        ]
        assert (run.tally.errors, run.tally.filtered) == (0, filtered)
        assert run.tally.by_reason["vote", "filtered", "none of its samples has a value in answer"] == 2


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float64(), [1.0, float("nan"), float("nan")]),
        (pa.list_(pa.string()), [["a", "b"], ["b", "a"], ["b", "a"]]),
        (pa.binary(), [b"\xfe", b"\xff", b"\xff"]),
    ],
)
def test_values_of_any_type_are_votes(tmp_path, kind, values):
    rows = samples({(0, i): value for i, value in enumerate(values)}, "answer")
    source = Samples(rows, pa.schema([LINEAGE, ("answer", kind)]))
    ((row),) = Flow(tmp_path, chain(source, vote=Majority("answer"))).run()
    assert (row["lineage"], row["votes"], row["samples"]) == ([1], 2, 3)


def test_a_majority_needs_samples_and_room_for_its_counts():
    with pytest.raises(SchemaError, match="there are no samples to count"):
        Majority("answer").plan(pa.schema([ROW, ("answer", pa.string())]))
    with pytest.raises(SchemaError, match="would write the column 'votes'"):
        Majority("votes").plan(pa.schema([ROW, LINEAGE, ("votes", pa.string())]))


@pytest.mark.parametrize("operator", [BestOf, Majority])
def test_losers_are_rejected_or_dropped(operator):
    with pytest.raises(ConfigError, match="losers='keep' cannot work: it is one of reject, drop"):
        operator("answer", losers="keep")


def test_at_least_one_stays():
    with pytest.raises(ConfigError, match="keep=0"):
        BestOf(keep=0)
