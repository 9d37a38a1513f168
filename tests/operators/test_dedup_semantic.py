"""Dedup by meaning: what a double loop in float64 would keep, whatever the blocks, the chunks and the library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.dedup import Dedup
from operators.rows import cosines as cosines_module
from operators.rows import semantic
from operators.rows.cosines import above, margin
from operators.rows.duplicates import Near
from operators.rows.semantic import Semantic
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import LINEAGE, ROW
from tests.operators.arrivals import Outcome, Row, in_order, resumed

LIST, FIXED = pa.list_(pa.float32()), pa.list_(pa.float32(), 8)
T = 0.92


def schema(kind: pa.DataType) -> pa.Schema:
    return pa.schema([ROW, ("a", pa.string()), ("v", kind)])


def planned(kind: pa.DataType = LIST, threshold: float = T, **given: Any) -> Dedup:
    most = given.pop("most_rows", 1000)
    op = Dedup(semantic=Semantic("v", threshold, most), **given)
    op.plan(schema(kind))
    return op


def chunked(vectors: list[Any], chunk_rows: int = 3, kind: pa.DataType = LIST) -> list[Any]:
    rows: list[Row] = [{"row": i, "a": None, "v": v} for i, v in enumerate(vectors)]
    return in_order([rows[i : i + chunk_rows] for i in range(0, len(rows), chunk_rows)], schema(kind))


def run(vectors: list[Any], chunk_rows: int = 3, kind: pa.DataType = LIST, **given: Any) -> Outcome:
    return Outcome().take(planned(kind, **given), chunked(vectors, chunk_rows, kind))


def plain(vectors: list[Any], threshold: float) -> dict[int, str]:
    """The rejects of a double loop, with sums that are exact before they are rounded."""
    kept: list[int] = []
    reasons: dict[int, str] = {}
    doubles = [None if v is None else np.array(v, np.float32).astype(float).tolist() for v in vectors]
    squares = [0.0 if v is None else math.fsum(x * x for x in v) for v in doubles]
    for i, v in enumerate(doubles):
        near = [
            (math.fsum(x * y for x, y in zip(v, w, strict=True)) / math.sqrt(squares[i] * squares[j]), -j)
            for j in kept
            if v is not None and (w := doubles[j]) is not None
        ]
        most, row = max(near, default=(-1.0, 0))
        if most >= threshold:
            reasons[i] = f"{most:.2f} like row {-row} in v (semantic: threshold {threshold:g})"
        else:
            kept.append(i)
    return reasons


def reasons(outcome: Outcome) -> dict[int, str]:
    assert {kind for kind, _ in outcome.rejects.values()} <= {"filtered"}
    return {row: why for (row, _), (_, why) in outcome.rejects.items()}


def drawn(seed: int, rows: int, size: int, threshold: float = T) -> list[Any]:
    """Random vectors; and of earlier ones the same, the opposite, larger and smaller ones up to the ends of float32,
    and such as are at the threshold, and 1e-7 and 1e-5 to either side of it. And nulls."""
    rng = np.random.default_rng(seed)
    made: list[Any] = [rng.standard_normal(size)]
    for _ in range(rows - 1):
        base = next(v for i in rng.permutation(len(made)) if (v := made[i]) is not None)
        base = base / np.linalg.norm(base)
        other = rng.standard_normal(size)
        other -= base * (other @ base)
        cos = min(1.0, threshold + rng.choice([0.0, 1e-7, -1e-7, 1e-5, -1e-5, 0.02, -0.02]))
        kinds: list[Any] = [
            rng.standard_normal(size),
            base,
            -base,
            base / np.abs(base).max() * 3e38,
            np.round(base * 30) * 2.0**-149,
            base + rng.standard_normal(size) * 0.05,
            *[cos * base + math.sqrt(1 - cos * cos) * other / np.linalg.norm(other)] * 4,
            None,
        ]
        chosen = rng.integers(len(kinds))
        made.append(kinds[chosen])
    return [None if v is None else np.array(v, np.float32).tolist() for v in made]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(2, 33), st.sampled_from([T, 0.5, 0.999]))
def test_rows_stay_that_a_double_loop_in_float64_keeps(seed, rows, size, threshold):
    vectors = drawn(seed, rows, size, threshold)
    assert reasons(run(vectors, chunk_rows=7, threshold=threshold)) == plain(vectors, threshold)


def test_at_threshold_1_the_same_vector_and_its_multiples_by_powers_of_two_are_duplicates():
    vectors = np.random.default_rng(0).standard_normal((50, 33)).astype(np.float32)
    again = vectors * np.float32(2.0) ** np.arange(-100, 100, 4)[:, None].astype(np.float32)
    outcome = run([*vectors.tolist(), *vectors.tolist(), *again.tolist(), *(-vectors).tolist()], threshold=1.0)
    assert sorted(row for row, _ in outcome.rows) == [*range(50), *range(150, 200)]


def between(pairs: int) -> list[Any]:
    """Of each pair of vectors the one and the other, and then such as are as near to the one, or nearly so."""
    planes = np.zeros((pairs, 3, 2 * pairs), np.float32)
    for i, off in enumerate(np.linspace(-1e-6, 1e-6, pairs)):
        planes[i, :, 2 * i : 2 * i + 2] = (2, 1), (1, 2), (1, 1 + off * (i % 2))
    return [planes[i, j].tolist() for j in range(3) for i in range(pairs)]


@pytest.mark.parametrize("vectors", [drawn(1, 300, 24), between(40)], ids=["drawn", "between"])
def test_no_product_in_float32_decides(monkeypatch, vectors):
    """Neither blocks nor chunks, nor what a library's sums are off by, show in what is kept and told."""
    expected = run(vectors, chunk_rows=100)
    assert reasons(expected) == plain(vectors, T)
    assert 30 < len(expected.rejects) < 270
    rng, size = np.random.default_rng(0), len(vectors[0])

    def other(queries, rows, lengths, least):
        """What `above` finds, and other pairs within the margin, with other values."""
        off = margin(rows.shape[1])
        at, places, near = above(queries, rows, lengths, least - off)
        near = near + rng.uniform(-off / 2, off / 2, len(near))
        return at[near >= least], places[near >= least], near[near >= least]

    monkeypatch.setattr(semantic, "above", other)
    for queries, block, pairs, chunk_rows in ((1, 1, 1, 7), (5, 7, 2, 100), (64, 100, 1000, 300)):
        monkeypatch.setattr(semantic, "QUERIES", queries)
        monkeypatch.setattr(semantic, "BLOCK_NUMBERS", size * block)
        monkeypatch.setattr(cosines_module, "PAIR_NUMBERS", size * pairs)
        found = run(vectors, chunk_rows)
        assert (found.rows, found.rejects) == (expected.rows, expected.rejects)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10**6), st.integers(0, 5))
def test_a_run_that_was_killed_behind_any_chunk_ends_as_one_that_was_not(seed, last):
    items = chunked(drawn(seed, 18, 8), 3, FIXED)
    whole = Outcome().take(planned(FIXED), items)
    before = Outcome().take(planned(FIXED), items, until=last)
    assert before.take(resumed(planned(FIXED), before), items[2 * last + 2 :]).told == whole.told
    assert before.states == whole.states


@pytest.mark.parametrize("kind", [FIXED, pa.large_list(pa.float32()), pa.list_(pa.float64()), pa.list_(pa.float16())])
def test_lists_of_any_floats_are_compared_as_float32(kind):
    several = [v for v in drawn(3, 40, 8) if v is None or 0.01 < max(v) < 100]
    vectors: list[Any] = [None if v is None else np.array(v, np.float16).tolist() for v in several]
    assert reasons(run(vectors, kind=kind)) == plain(vectors, T)


BROKEN: dict[str, tuple[Any, str]] = {
    "short": ([1.0], "the vector in 'v' has 1 numbers, and those of other rows have 2"),
    "empty": ([], "the vector in 'v' has 0 numbers"),
    "nan": ([1.0, math.nan], "number 1 of the vector in 'v' is null or NaN"),
    "null": ([None, 1.0], "number 0 of the vector in 'v' is null or NaN"),
    "infinite": ([-math.inf, 1.0], "number 0 of the vector in 'v' is infinite as float32"),
    "zeros": ([0.0, -0.0], "the vector in 'v' is all zeros, so it has no direction"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_compared_is_an_error_that_names_it_and_a_null_stays(name):
    vector, reason = BROKEN[name]
    outcome = run([None, [1.0, 2.0], vector, None, [2.0, 4.0], vector, [2.0, -1.0]])
    assert outcome.rejects == {
        (2, ()): ("error", reason),
        (4, ()): ("filtered", "1.00 like row 1 in v (semantic: threshold 0.92)"),
        (5, ()): ("error", reason),
    }
    assert sorted(row for row, _ in outcome.rows) == [0, 1, 3, 6]


def test_a_chunk_of_which_nothing_is_left_and_one_without_vectors_are_remembered():
    vectors = [
        [1.0, 2.0, 0.0],
        [math.nan] * 3,
        [0.0] * 3,
        [math.nan] * 3,
        None,
        None,
        None,
        [2.0, 4.0, 0.0],
        [1.0, 2.0],
    ]
    items = chunked(vectors, chunk_rows=2)
    whole = Outcome().take(planned(), items)
    assert {row: kind for (row, _), (kind, _) in whole.rejects.items()} == dict.fromkeys((1, 2, 3, 8), "error") | {
        7: "filtered"
    }
    for last in range(4):
        before = Outcome().take(planned(), items, until=last)
        assert before.take(resumed(planned(), before), items[2 * last + 2 :]).told == whole.told


def test_equal_columns_come_first_then_near_texts_then_meaning_and_none_keeps_what_another_rejects():
    text = "the cat sat on the mat and looked at the dog that lay in the sun"
    rows: list[Row] = [
        {"row": 0, "a": text, "v": [1.0, 0.0]},
        {"row": 1, "a": text, "v": [0.0, 1.0]},
        {"row": 2, "a": f"{text} again", "v": [0.0, 1.0]},
        {"row": 3, "a": "something else", "v": [1.0, 0.1]},
        {"row": 4, "a": "something else", "v": [0.0, 1.0]},
        {"row": 5, "a": "something else again, and more", "v": [0.1, 1.0]},
        {"row": 6, "a": f"{text}, again", "v": [0.0, 1.0]},
    ]
    op = planned(columns=["a"], near=Near("a", 0.7))
    outcome = Outcome().take(op, in_order([rows[:3], rows[3:]], schema(LIST)))
    assert outcome.rejects == {
        (1, ()): ("filtered", "equal to row 0 in a"),
        (2, ()): ("filtered", "0.92 like row 0 in a (near duplicates: threshold 0.7)"),
        (3, ()): ("filtered", "1.00 like row 0 in v (semantic: threshold 0.92)"),
        (5, ()): ("filtered", "1.00 like row 4 in v (semantic: threshold 0.92)"),
        (6, ()): ("filtered", "0.84 like row 0 in a (near duplicates: threshold 0.7)"),
    }


def test_the_row_that_is_named_has_its_lineage():
    with_lineage = pa.schema([ROW, LINEAGE, ("v", LIST)])
    rows: list[Row] = [{"row": 5, "lineage": [0, i], "v": [1.0, i / 10]} for i in range(2)]
    op = Dedup(semantic=Semantic("v"))
    op.plan(with_lineage)
    (told,) = Outcome().take(op, in_order([rows], with_lineage)).rejects.items()
    assert told == ((5, (0, 1)), ("filtered", "1.00 like row 5, lineage [0, 0], in v (semantic: threshold 0.92)"))


def test_what_is_committed_grows_with_the_chunk_by_four_bytes_a_number():
    vectors = [v.tolist() for v in np.eye(8, dtype=np.float32)]
    states = run([*vectors, *vectors], chunk_rows=4, kind=FIXED).states
    assert [len(states[chunk]) for chunk in range(4)] == [8 + 4 + 4 * (9 + 1 + 8 * 4)] * 2 + [8 + 4] * 2


def test_a_row_too_many_ends_the_run_with_what_to_do_and_it_goes_on_with_a_larger_number():
    vectors = [v.tolist() for v in np.eye(8, dtype=np.float32)]
    items = chunked(vectors, chunk_rows=2, kind=FIXED)
    before = Outcome()
    with pytest.raises(ConfigError, match=r"semantic\.most_rows=5 rows with a vector .* 32 bytes .* the run goes on"):
        before.take(planned(FIXED, most_rows=5), items)
    assert before.ended == [0, 1]
    rest = [item for item in items if item.chunk > 1]
    assert len(before.take(resumed(planned(FIXED, most_rows=8), before), rest).rows) == 8


@pytest.mark.parametrize(
    ("given", "kind", "error", "message"),
    [
        ({"threshold": 0.0}, LIST, ConfigError, "semantic.threshold=0.0 cannot work: it is above 0 and up to 1"),
        ({"threshold": 1.1}, LIST, ConfigError, "semantic.threshold=1.1 cannot work"),
        ({"most_rows": 0}, LIST, ConfigError, "semantic.most_rows=0 cannot work"),
        ({"column": "z"}, LIST, SchemaError, "needs a column 'z'"),
        ({"column": "a"}, LIST, SchemaError, "column 'a' has type string; it must be a list of floats, as Embed makes"),
        ({}, pa.list_(pa.int64()), SchemaError, "column 'v' has type list<.*int64>; it must be a list of floats"),
    ],
)
def test_what_cannot_work_is_refused(given, kind, error, message):
    with pytest.raises(error, match=message):
        Dedup(semantic=Semantic(**{"column": "v", **given})).plan(schema(kind))


def test_the_plan_says_what_a_row_takes():
    (need,) = planned(FIXED, most_rows=1 << 17).memory_needs()
    assert (
        need.what == "vectors of the rows that Dedup keeps: 32 bytes each, up to 4 MiB with semantic.most_rows=131072"
    )
    assert need.size_bytes == 0
    (need,) = planned(LIST).memory_needs()
    assert need.what == "vectors of the rows that Dedup keeps: 4 bytes a number with semantic.most_rows=1000"
    assert not list(Dedup(["a"]).memory_needs())
