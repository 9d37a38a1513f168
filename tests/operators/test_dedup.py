"""Dedup: the first of equal rows, and of rows that are nearly equal; and what keeps their hashes."""

from __future__ import annotations

import re
import sys
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.dedup import Dedup
from operators.rows.duplicates import KeptRows, Near, NearTexts, shingles
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import LINEAGE, ROW, Batch, Reject, RejectKind, Rejects
from pipeline.dataflow.reject_writer import RejectTally
from pipeline.system.seen_hashes import HASH, HASH_BYTES, SeenHashes
from tests.arrow_extremes import taken
from tests.operators.arrivals import Outcome, Row, in_order

SCHEMA = pa.schema([ROW, ("a", pa.string()), ("b", pa.float64()), ("c", pa.list_(pa.binary()))])
SENTENCE = "the cat sat on the mat and looked at the dog that lay in the sun by the old red door"
WORDS = SENTENCE.split()


def run(op: Dedup, rows: list[Row], chunk_rows: int = 3) -> Outcome:
    op.plan(SCHEMA)
    numbered = [{"row": i, "a": None, "b": None, "c": None, **row} for i, row in enumerate(rows)]
    return Outcome().take(op, in_order([numbered[i : i + chunk_rows] for i in range(0, len(rows), chunk_rows)], SCHEMA))


def kept(op: Dedup, rows: list[Row]) -> list[int]:
    return sorted(row for row, _ in run(op, rows).rows)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "a": st.none() | st.sampled_from(["", "x", "null", '"x"', "1"]),
    "b": st.none() | st.sampled_from([0.0, 1.0, 0.1]),
    "c": st.none() | st.lists(st.none() | st.sampled_from([b"", b"x", b"\xff"]), max_size=2),
}


@settings(deadline=None, max_examples=40)
@given(st.lists(st.fixed_dictionaries(VALUES), max_size=12), st.sets(st.sampled_from("abc"), min_size=1))
def test_equal_rows_are_those_whose_values_are_equal_and_the_first_stays(rows, columns):
    names = sorted(columns)
    first: dict[str, int] = {}
    for i, row in enumerate(rows):
        first.setdefault(repr([row[name] for name in names]), i)
    assert kept(Dedup(names), rows) == sorted(first.values())


def test_a_row_is_compared_with_rows_that_are_kept_and_no_others():
    """Row 1 is nearly row 0, so it is gone; row 2 equals row 1 in `b` and is like no row that is kept."""
    rows = [{"a": SENTENCE, "b": 1.0}, {"a": " ".join([*WORDS, "again"]), "b": 2.0}, {"a": "something else", "b": 2.0}]
    assert kept(Dedup(["b"], Near("a")), rows) == [0, 2]


def test_the_reasons_say_which_columns_of_which_row_and_how_near():
    rows: list[Row] = [{"a": SENTENCE}, {"a": SENTENCE}, {"a": SENTENCE.upper() + " "}, {"a": "else"}, {"a": "else"}]
    outcome = run(Dedup(["a", "b"], Near("a")), rows)
    assert outcome.rejects == {
        (1, ()): ("filtered", "equal to row 0 in a, b"),
        (2, ()): ("filtered", "1.00 like row 0 in a (near duplicates: threshold 0.8)"),
        (4, ()): ("filtered", "equal to row 3 in a, b"),
    }


def test_the_row_that_is_named_is_the_most_similar_one_and_has_its_lineage():
    schema = pa.schema([ROW, LINEAGE, ("a", pa.string())])
    words = [f"w{i}" for i in range(30)]
    texts = [" ".join(words[first : first + 20]) for first in (0, 10, 6)]  # the last: 14/26 like the first, 16/24
    chunks = [[{"row": 5, "lineage": [0, i], "a": text}] for i, text in enumerate(texts)]
    op = Dedup(near=Near("a", 0.4, words=1, permutations=512))
    op.plan(schema)
    outcome = Outcome().take(op, in_order(chunks, schema))
    ((identity, (_, reason)),) = outcome.rejects.items()
    assert identity == (5, (0, 2))
    found = re.fullmatch(r"(0\.\d\d) like row 5, lineage \[0, 1\], in a \(near duplicates: threshold 0\.4\)", reason)
    assert found
    assert float(found[1]) == pytest.approx(16 / 24, abs=0.05)


def test_reasons_are_counted_without_the_rows_that_they_name():
    """Else each reject would be a reason of its own, in the state and in the summary."""
    rows: list[Row] = [{"a": f"{SENTENCE} {'!' * (i % 30)}" if i % 2 else str(i % 30)} for i in range(200)]
    outcome = run(Dedup(["a"], Near("a", 0.5)), rows)
    tally = RejectTally()
    kind = RejectKind.FILTERED
    tally.add(Rejects(0, tuple(Reject(row, why, kind=kind) for (row, _), (_, why) in outcome.rejects.items()), "d"))
    assert len({why for _, why in outcome.rejects.values()}) > 15
    assert set(tally.by_reason) == {
        ("d", "filtered", "equal to row N in a"),
        ("d", "filtered", "N like row N in a (near duplicates: threshold 0.5)"),
    }


@pytest.mark.parametrize(("changed", "expected"), [(0, [0]), (1, [0]), (12, [0, 1])])
def test_near_is_how_many_shingles_are_shared(changed, expected):
    other = [f"w{i}" if i < changed else word for i, word in enumerate(WORDS)]
    assert kept(Dedup(near=Near("a", 0.7, words=2)), [{"a": SENTENCE}, {"a": " ".join(other)}]) == expected


def test_shingles_are_runs_of_words_in_any_case_and_space():
    assert list(shingles("A b\n C", 2)) == [b"a b", b"b c"]
    assert list(shingles("a b", 3)) == [b"a b"]
    assert list(shingles("", 3)) == [b""]


def test_what_is_committed_with_a_chunk_grows_with_the_chunk_and_not_with_the_run():
    outcome = run(Dedup(["a"]), [{"a": str(i // 2)} for i in range(40)], chunk_rows=4)
    assert {len(added) for added in outcome.states.values()} == {8 + 2 * (9 + HASH_BYTES)}
    near = run(Dedup(near=Near("a", permutations=32)), [{"a": str(i // 2)} for i in range(8)], chunk_rows=4)
    assert {len(added) for added in near.states.values()} == {8 + 2 * (9 + 32 * 4)}


def test_texts_are_not_kept():
    rows = [{"a": f"{i} " + "x" * 10_000} for i in range(200)]
    op = Dedup(["a"])
    run(op, rows[:3])
    tracemalloc.start()
    try:
        run(op, rows)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 200 * 1_000


def test_a_near_text_costs_what_the_docstring_says():
    texts = NearTexts(Near("a"))
    tracemalloc.start()
    try:
        for i in range(200):
            texts.keep(texts.signature(" ".join(f"{word}{i}" for word in WORDS)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 200 * 6_000


@pytest.mark.parametrize(
    ("columns", "near", "error", "message"),
    [
        (None, None, ConfigError, "give columns, near or semantic"),
        ([], None, ConfigError, "give columns, near or semantic"),
        (None, {"column": "a", "threshold": 1.5}, ConfigError, "near.threshold=1.5 cannot work"),
        (None, {"column": "a", "words": 0}, ConfigError, "near.words=0 cannot work"),
        (None, {"column": "a", "permutations": 1}, ConfigError, "near.permutations=1 cannot work: it is 16 or more"),
        (
            *(None, {"column": "a", "threshold": 0.999, "permutations": 16}),
            *(ConfigError, "near.threshold=0.999 is too high for 16 permutations"),
        ),
        (["z"], None, SchemaError, "needs a column 'z'"),
        (None, {"column": "z"}, SchemaError, "needs a column 'z'"),
        (None, {"column": "b"}, SchemaError, "column 'b' has type double; it must be string"),
    ],
)
def test_what_cannot_work_is_refused(columns, near, error, message):
    with pytest.raises(error, match=message):
        Dedup(columns, near and Near(**near)).plan(SCHEMA)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[dedup\]'"):
        Dedup(near=Near("a"))


def test_a_column_of_any_type_is_compared_at_its_extremes() -> None:
    for name, column in taken().items():
        schema = pa.schema([ROW, pa.field("x", column.type)])
        op = Dedup(columns=["x"])
        op.plan(schema)
        assert not list(op.process(Batch(0, pa.record_batch([pa.array(range(4)), column], schema=schema))))
        out = list(op.finish(0))
        assert sum(item.num_rows for item in out if isinstance(item, Batch | Rejects)) == 4, name


def hashes(values: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(values), HASH)


KEYS = st.binary(min_size=1, max_size=3).map(lambda b: b.ljust(HASH_BYTES, b"\0")) | st.binary(
    min_size=HASH_BYTES, max_size=HASH_BYTES
)
"""Also such that end in zero bytes, or differ in nothing else."""


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sets(KEYS, max_size=9), max_size=9), st.lists(KEYS, max_size=9))
def test_it_is_a_mapping_from_hashes_to_numbers(added, others):
    seen, known = SeenHashes(), dict[bytes, int]()
    for keys in added:
        new = list(keys - known.keys())
        seen.add(hashes(new), np.arange(len(known), len(known) + len(new)))
        known |= {key: len(known) + i for i, key in enumerate(new)}
        asked = [*keys, *others]
        assert seen.find(hashes(asked)).tolist() == [known.get(key, -1) for key in asked]
    assert sum(len(run) for run, _ in seen._runs) == len(known)


IDENTITIES = st.tuples(st.integers(0, 2**40), st.lists(st.integers(0, 2**31 - 1), max_size=3))


@given(st.lists(st.lists(IDENTITIES, max_size=5), max_size=5), st.binary(max_size=9))
def test_kept_rows_are_named_also_after_they_were_packed(chunks, behind):
    rows, restored = KeptRows(), KeptRows()
    for chunk in chunks:
        packed = rows.add(chunk)
        assert restored.restore(packed + behind) == len(packed) == 8 + sum(9 + 4 * len(b) for _, b in chunk)
    names = [f"row {row}, lineage {lineage}," if lineage else f"row {row}" for c in chunks for row, lineage in c]
    assert [rows.name(i) for i in range(rows.count)] == names
    assert [restored.name(i) for i in range(restored.count)] == names


def test_a_hash_costs_its_16_bytes_and_the_number_of_its_row_8():
    """Not what a Python dict takes, which is about 150."""
    rng = np.random.default_rng(0)
    seen = SeenHashes()
    tracemalloc.start()
    try:
        for i in range(50):
            seen.add(np.frombuffer(rng.bytes(HASH_BYTES * 4096), HASH), np.arange(4096 * i, 4096 * (i + 1)))
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kept = sum(len(run) for run, _ in seen._runs)
    assert kept == 50 * 4096
    assert held < 25 * kept
    assert most < 3 * (HASH_BYTES + 8) * kept
    assert len(seen._runs) < 20
