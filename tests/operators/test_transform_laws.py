"""What holds for every transform: neither batches nor the order of arrival show, no row is lost, and a restart is not
seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators import targets
from operators.assign import Assign
from operators.best_of import BestOf, Majority
from operators.call import Call
from operators.columns import Rename, Select
from operators.dedup import Dedup
from operators.explode import Explode
from operators.filter import Filter
from operators.gather import Gather, Pairs
from operators.grade import Grade
from operators.limit import Limit
from operators.lookup import Lookup
from operators.map import Map
from operators.parse_json import ParseJson
from operators.rows.duplicates import Near
from operators.rows.semantic import Semantic
from operators.sample_rows import Sample
from operators.say import Say
from operators.settings.table import TableSettings
from pipeline import PROJECT
from pipeline.api.protocols import Scope
from pipeline.api.records import LINEAGE, ROW
from tests.operators.arrivals import Outcome, Row, in_order, mixed, resumed

NAMES = TableSettings(path=str(PROJECT / "tests/operators/names.csv"))
VALUES = {"n": pa.int64(), "text": pa.string(), "many": pa.list_(pa.int64()), "m": pa.int64(), "other": pa.string()}
VALUES |= {"v": pa.list_(pa.float32(), 2)}
SCHEMA = pa.schema([ROW, LINEAGE, *VALUES.items()])
TEXTS = ["the quick brown fox jumps over the lazy dog", "The quick brown fox jumps over the lazy cat", "else", None]


def row(i: int) -> Row:
    """Number `i`: two of each `row`, few different values, lists of 0 to 2 elements and null."""
    lists: list[Any] = [[i, i + 1], [], None, [i]]
    vectors: list[Any] = [[1.0, 0.125], [0.5, 4.0], [0.0, 0.0], None, [1.0, 0.625]]
    values = (i * 7 % 5, TEXTS[i * 3 % 4], lists[i % 4], i // 3 % 2, TEXTS[i // 2 % 3], vectors[i // 2 % 5])
    return {"row": i // 2, "lineage": [i % 2], **dict(zip(VALUES, values, strict=True))}


CHUNKS = [[row(i) for i in range(first, min(first + 6, 22))] for first in range(0, 22, 6)]
ROWS = sum(map(len, CHUNKS))


def call_once(row: Row, least: int) -> Row | None:
    return {"text": f"{row['n']}!"} if row["n"] >= least else None


def call_many(row: Row) -> list[Row]:
    return [{"n": value} for value in row["many"] or []]


def call_tool(name: str, arguments: Row, row: Row) -> str:
    return name


TRANSFORMS: Mapping[str, Callable[[], Any]] = {
    "assign": lambda: Assign({"train": 0.6, "test": 0.4}),
    "assign-group": lambda: Assign({"a": 0.3, "b": 0.3, "c": 0.4}, ["text", "many"], "part", split_seed=4),
    "best": lambda: BestOf("n"),
    "best-drop": lambda: BestOf("n", losers="drop"),
    "call": lambda: Call(call_once, arguments={"least": 2}),
    "call-many": lambda: Call(call_many, many=True),
    "dedup": lambda: Dedup(["n", "text"]),
    "dedup-near": lambda: Dedup(near=Near("text", threshold=0.5, words=2, permutations=32)),
    "dedup-both": lambda: Dedup(["n"], Near("text", threshold=0.5, words=2, permutations=32)),
    "dedup-semantic": lambda: Dedup(semantic=Semantic("v", threshold=0.9)),
    "dedup-all": lambda: Dedup(["n"], Near("text", 0.5, words=2, permutations=32), Semantic("v", threshold=0.9)),
    "explode": lambda: Explode("many"),
    "explode-keep": lambda: Explode("many", as_="one", empty="keep"),
    "filter": lambda: Filter("n > 2"),
    "gather": lambda: Gather(["n", "text", "many", "m"]),
    "gather-rejects": lambda: Gather(["n", "text", "many"]),
    "grade": lambda: Grade("f1", "other", "text", extract="quick|else"),
    "limit": lambda: Limit(9),
    "limit-beyond": lambda: Limit(1000),
    "lookup": lambda: Lookup(NAMES, "n"),
    "lookup-anti": lambda: Lookup(NAMES, {"m": "n"}, how="anti"),
    "lookup-cross": lambda: Lookup(NAMES, columns=["name"], how="cross"),
    "lookup-list": lambda: Lookup(NAMES, "n", how="inner", matches="list"),
    "majority": lambda: Majority("text"),
    "majority-drop": lambda: Majority("text", losers="drop"),
    "map": lambda: Map({"n": "n + 1", "twice": "n * 2"}, {"line": "{{ n }} {{ text }}"}),
    "map-where": lambda: Map({"n": "n + 1"}, {"line": "{{ n }} {{ text }}"}, where="n > 2"),
    "pairs": lambda: Pairs(["text", "other"], ["n", "m"], "other"),
    "parse": lambda: ParseJson("text", {"a": "int64"}),
    "parse-where": lambda: ParseJson("text", {"a": "int64"}, where="n > 2"),
    "rename": lambda: Rename({"n": "text", "text": "n"}),
    "sample-share": lambda: Sample(fraction=0.4, seed=3),
    "sample-chunk": lambda: Sample(per_chunk=2),
    "sample-per": lambda: Sample(per="n", rows=2),
    "say": lambda: Say("user", "{{ text }}"),
    "say-answer": lambda: Say("assistant", answer="other"),
    "say-tool": lambda: Say("tool", function=call_tool),
    "select": lambda: Select(["n"]),
}
REMEMBER = ["dedup", "dedup-near", "dedup-both", "dedup-semantic", "dedup-all", "limit", "limit-beyond", "sample-per"]
OF_ONE_ROW = [name for name, make in TRANSFORMS.items() if make().scope is Scope.ROW]
NEED_A_MODEL = {"Render", "Tokenize", "BatchByLength", "Split"}
"""tests/pipeline/cluster compares the bytes of whole jobs with these."""


def planned(name: str) -> Any:
    op = TRANSFORMS[name]()
    op.plan(SCHEMA)
    return op


@pytest.fixture(scope="module", params=TRANSFORMS)
def transform(request) -> tuple[str, Outcome]:
    """Its name, and what it makes of the rows as they stand."""
    return request.param, Outcome().take(planned(request.param), in_order(CHUNKS, SCHEMA))


def test_no_row_is_lost_or_made_up(transform):
    name, outcome = transform
    read = sum(len(CHUNKS[chunk]) for chunk in outcome.ended)
    assert read + outcome.expanded == len(outcome.rows) + len(outcome.rejects)
    assert read == ROWS or name == "limit"


def test_the_rows_have_the_planned_columns(transform):
    name, outcome = transform
    schema = TRANSFORMS[name]().plan(SCHEMA)
    assert all(list(row) == schema.names for row in outcome.rows.values())


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_batches_and_the_order_of_arrival_do_not_show(transform, data):
    name, outcome = transform
    items = data.draw(mixed(CHUNKS, SCHEMA))
    assert Outcome().take(planned(name), items).told == outcome.told


@pytest.mark.parametrize("name", OF_ONE_ROW)
def test_what_workers_may_run_gives_each_row_what_it_gives_it_alone(name):
    alone, outcome = Outcome(), Outcome().take(planned(name), in_order(CHUNKS, SCHEMA))
    for rows in CHUNKS:
        for one in rows:
            alone.take(planned(name), in_order([[one]], SCHEMA))
    assert (alone.rows, alone.rejects, alone.expanded) == (outcome.rows, outcome.rejects, outcome.expanded)


def test_every_transform_of_the_catalog_that_workers_may_run_is_here():
    classes = [getattr(import_module(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in targets()]
    moved = {cls.__name__ for cls in classes if cls.scope is Scope.ROW}
    tried = {type(TRANSFORMS[name]()).__name__ for name in OF_ONE_ROW}
    assert moved - tried == NEED_A_MODEL, "add the others to TRANSFORMS"
    page = (PROJECT / "docs/cluster.md").read_text(encoding="utf-8").partition("by itself (")[2].partition(")")[0]
    moved_there = {cls.__name__ for cls in classes if cls.scope is not Scope.RUN}
    assert set(page.replace("\n", " ").split(", ")) == moved_there, "docs/cluster.md names them in 'by itself (...)'"


@pytest.mark.parametrize("name", REMEMBER)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_run_that_was_killed_behind_any_chunk_ends_as_one_that_was_not(name, data):
    """Also when rows of the next chunk had been seen."""
    whole = Outcome().take(planned(name), in_order(CHUNKS, SCHEMA))
    last = data.draw(st.integers(0, len(CHUNKS) - 1))
    before = Outcome().take(planned(name), data.draw(mixed(CHUNKS, SCHEMA)), until=last)
    op = resumed(planned(name), before)
    rest = data.draw(mixed(CHUNKS, SCHEMA, first=before.ended[-1] + 1))
    assert before.take(op, rest).told == whole.told


def test_the_transforms_do_something(transform):
    """Else the laws above would hold of operators that pass everything on."""
    name, outcome = transform
    before = {(r["row"], tuple(r["lineage"])): json.dumps(r) for rows in CHUNKS for r in rows}
    after = {key: json.dumps(row) for key, row in outcome.rows.items()}
    assert (before != after) != (name == "limit-beyond")
