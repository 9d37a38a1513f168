"""on_error: keep, over chains of transforms: no row is lost, and those without an error are as without it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.best_of import BestOf
from operators.call import Call
from operators.dedup import Dedup
from operators.explode import Explode
from operators.filter import Filter
from operators.lookup import Lookup
from operators.map import Map
from operators.parse_json import ParseJson
from operators.rows.lineage import append_to_lineage, repeated, with_lineage
from operators.settings.table import TableSettings
from operators.union import Union
from pipeline import PROJECT
from pipeline.api.by_batch import OnError
from pipeline.api.errors import ConfigError
from pipeline.api.protocols import Inbox, ListInbox, Operator, Scope
from pipeline.api.records import KEPT, LINEAGE, Batch, ChunkEnd, Item, RejectKind, Shard
from pipeline.dataflow.graph import Graph, Node
from pipeline.dataflow.kept_errors import KeptErrors, _InFlight
from pipeline.run_dir.chunk_record import ChunkRecord, RejectCounts
from tests.operators.flow import Flow, Rows, chain
from tests.pipeline.ops import Collect

SCHEMA = pa.schema({"n": pa.string(), "text": pa.string(), "many": pa.list_(pa.int64())})
ERROR = "step_error"


def odd(row: dict[str, Any]) -> dict[str, Any] | None:
    if row["n"] == "7":
        raise ValueError(f"no luck with {row['n']}")
    return {"called": row["n"]} if row["n"] != "8" else None


class Samples(Operator):
    """Works as Generate does: each row becomes two, some fail before that and some behind, and rows leave when their
    chunk ends, the last ones first."""

    scope = Scope.ROW

    def plan(self, schema: pa.Schema) -> pa.Schema:
        fields = [field.with_nullable(field.name not in ("row", "n")) for field in schema]
        self.schema = with_lineage(fields).append(pa.field("drawn", pa.int64(), nullable=False))
        return self.schema

    def run(self, inbox: Inbox) -> Iterator[Item | Shard]:
        held: dict[int, list[Batch]] = {}
        for item in inbox:
            if isinstance(item, Batch):
                held.setdefault(item.chunk, []).append(item)
            else:
                for batch in reversed(held.pop(item.chunk, [])):
                    yield from self.drawn(batch)
                yield item

    def drawn(self, batch: Batch) -> Iterator[Item]:
        numbers = batch.data.column("n").to_pylist()
        if early := [i for i, n in enumerate(numbers) if n == "1"]:
            yield batch.reject(early, "no seed for '1'")
        counts = np.array([0 if n == "1" else 2 for n in numbers], np.int64)
        parents, samples = repeated(counts)
        data = batch.data.take(pa.array(parents))
        before = data.column(LINEAGE.name) if LINEAGE.name in data.schema.names else None
        made = {name: data.column(name) for name in data.schema.names}
        made |= {LINEAGE.name: append_to_lineage(before, samples), "drawn": pa.array(samples, pa.int64())}
        rows = batch.with_data(pa.record_batch([made[name] for name in self.schema.names], schema=self.schema))
        late = [i for i, s in enumerate(samples) if s == 1 and numbers[parents[i]] == "2"]
        others = [i for i in range(rows.num_rows) if i not in late]
        if late:
            yield rows.reject(late, "it was cut")
        yield rows.with_data(
            rows.data.take(pa.array(others, pa.int64())), expanded=len(samples) - int((counts > 0).sum())
        )


PARTS: Mapping[str, Callable[[], Operator]] = {
    "call": lambda: Call(odd),
    "cast": lambda: Map({"number": "CAST(n AS INT)"}),
    "explode": lambda: Explode("many"),
    "filter": lambda: Filter("n <> '3'"),
    "json": lambda: ParseJson("text", {"a": "int64"}, as_="read"),
    "json_filtered": lambda: ParseJson("text", {"b": "int64"}, as_="again", invalid="filtered"),
    "lookup": lambda: Lookup(TableSettings(path=str(PROJECT / "tests/operators/names.csv"), types="text"), "n"),
    "line": lambda: Map(templates={"line": "{{ text }}!"}),
    "samples": Samples,
}
TEXTS = ['{"a": 1, "b": 2}', '{"a": 2}', '{"a": ', None]


class Committed(Flow):
    """Keeps what is counted of its rejects."""

    def __init__(self, directory: Path, nodes: dict[str, Node]) -> None:
        super().__init__(directory, nodes)
        self.counts = RejectCounts()

    def commit(self, record: ChunkRecord) -> None:
        super().commit(record)
        self.counts.update(record.rejects)


def ran(names: Sequence[str], rows: list[dict[str, Any]], batch: int, on_error: OnError) -> Any:
    """Rows and rejects of a step of these nodes, and what is counted."""
    nodes = chain(Rows(rows, SCHEMA, chunk_rows=5, batch=batch), **{name: PARTS[name]() for name in names})
    for name in names:
        nodes[name].op.on_error = on_error
        nodes[name] = replace(nodes[name], kept_as=ERROR if on_error is OnError.KEEP else None)
    with tempfile.TemporaryDirectory() as folder:
        flow = Committed(Path(folder), nodes)
        out = {identity(row): row for row in flow.run()}
        assert len(out) == len(flow.out)
        for data in (made.data for made in flow.sink.batches):
            assert all(field.nullable or not data.column(field.name).null_count for field in data.schema)
        paths = sorted(Path(folder).glob("rejects/*.parquet"))
        rejects = {identity(row): row for path in paths for row in pq.read_table(path).to_pylist()}
    return out, rejects, flow.counts


def identity(row: dict[str, Any]) -> tuple[int, tuple[int, ...]]:
    return row["row"], tuple(row.get("lineage") or ())


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_row_with_an_error_stays_and_no_other_row_changes(data):
    names = data.draw(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=4, unique=True))
    columns = {
        "n": st.sampled_from([*"12345678", "x"]),
        "text": st.sampled_from(TEXTS),
        "many": st.lists(st.integers(0, 9), max_size=2),
    }
    rows = data.draw(st.lists(st.fixed_dictionaries(columns), max_size=17))
    batch = data.draw(st.integers(1, 6))
    kept, filtered, counted = ran(names, rows, batch, OnError.KEEP)
    fine, rejects, _ = ran(names, rows, data.draw(st.integers(1, 6)), OnError.REJECT)
    failed = {key: row for key, row in kept.items() if row[ERROR] is not None}
    assert {key: {**row, ERROR: None} for key, row in fine.items()} == {
        k: r for k, r in kept.items() if k not in failed
    }
    errors = {key: reject for key, reject in rejects.items() if reject["kind"] == RejectKind.ERROR}
    assert {key: row[ERROR] for key, row in failed.items()} == {key: reject["reason"] for key, reject in errors.items()}
    assert filtered == {key: reject for key, reject in rejects.items() if key not in errors}
    by_node = Counter(reject["node"] for reject in errors.values())
    assert by_node == sum((Counter({node: n}) for (node, kind, _), n in counted.items() if kind == KEPT), Counter())
    for (number, _), row in failed.items():
        assert {name: row[name] for name in ("n", "text")} == {name: rows[number][name] for name in ("n", "text")}
        assert {name for name in row if row[name] is not None} <= {"row", "lineage", "n", "text", "many", ERROR}


@pytest.mark.parametrize(("by_batch", "most"), [(True, 1), (False, 3)])
def test_rows_are_held_until_they_have_left_and_no_longer(by_batch, most):
    """Batch by batch one batch, otherwise those of open chunks."""
    op = Map({"number": "CAST(n AS INT)"})
    keeper = KeptErrors(ERROR, op, [SCHEMA])
    keeper.plan(op.plan(SCHEMA))
    data = pa.RecordBatch.from_pylist([], schema=SCHEMA)
    items: list[Item] = []
    for chunk in range(4):
        items += [*[Batch(chunk, data)] * 3, ChunkEnd(chunk, 0)]
    flight = _InFlight(keeper, ListInbox(items), by_batch=by_batch)
    held = []
    for item in flight:
        held.append(sum(len(rows.batches) for rows in flight._held.values()))
        if isinstance(item, ChunkEnd):
            flight.end(item.chunk)
    assert max(held) == most


@pytest.mark.parametrize(
    ("op", "says"),
    [
        (lambda: Dedup(["n"]), "Dedup reads, writes, joins or chooses rows"),
        (BestOf, "BestOf"),
        (Union, "Union"),
        (Collect, "Collect"),
    ],
    ids=["dedup", "best", "union", "sink"],
)
def test_what_decides_over_rows_cannot_keep_one(op, says):
    inputs = ("source", "source") if op is Union else ("source",)
    nodes = {
        "source": Node(Rows([], SCHEMA)),
        "it": Node(op(), inputs, kept_as="it_error"),
        "out": Node(Collect(), ("it",)),
    }
    with pytest.raises(ConfigError, match=f"node 'it': on_error=keep .*{says}"):
        Graph(nodes)


def test_a_column_of_that_name_is_refused_whether_it_comes_in_or_is_made():
    schema = pa.schema([*SCHEMA, pa.field("it_error", pa.string())])
    for source, op in ((schema, Map({"x": "1"})), (SCHEMA, Map({"it_error": "1"}))):
        nodes = {
            "source": Node(Rows([], source)),
            "it": Node(op, ("source",), kept_as="it_error"),
            "out": Node(Collect(), ("it",)),
        }
        with pytest.raises(ConfigError, match=r"node 'it': .*'it_error'"):
            Graph(nodes)
