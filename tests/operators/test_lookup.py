"""Lookup: what polars joins, in the order of the left side, with no row lost."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Sequence
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operators.lookup import HOWS, MATCHES, PIECE_ROWS, Lookup
from operators.rows import keyed_table
from operators.settings import DataSettings
from operators.settings.table import OF_PROMPTS, TableSettings
from pipeline.api.errors import ConfigError, InputError, SchemaError
from pipeline.api.records import LINEAGE, ROW, Batch, Rejects
from tests.operators.arrivals import Outcome, in_order

DAY = datetime.date(2026, 1, 1)
KEYS: dict[pa.DataType, list[Any]] = {
    pa.int64(): [0, 1, 2**62],
    pa.string(): ["", "a", "A", "ä", "a\u0308", "null", "\U0001f600"],
    pa.bool_(): [True, False],
    pa.date32(): [DAY, DAY + datetime.timedelta(1)],
    pa.timestamp("us"): [datetime.datetime(2026, 1, 1, 0, 0, 0, i) for i in range(2)],
    pa.float64(): [0.0, -0.0, 1.5, float("nan"), float("inf")],
    pa.decimal128(5, 2): [Decimal("1.00"), Decimal("1.10")],
}


def write(path: Path, rows: Sequence[dict[str, Any]], schema: pa.Schema) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path, row_group_size=3)
    return path


def lookup(path: Path | str, on: Any = "k", table: dict[str, Any] | None = None, **arguments: Any) -> Lookup:
    return Lookup(TableSettings(path=str(path), **(table or {})), on, **arguments)


def outcome(op: Lookup, rows: Sequence[dict[str, Any]], schema: pa.Schema) -> Outcome:
    op.plan(schema)
    return Outcome().take(op, in_order([rows], schema))


def joined(left: pl.DataFrame, table: pl.DataFrame, on: list[str], how: Any) -> list[tuple[int, int | None]]:
    """The pairs of rows that polars finds, in the order of the left side and then of the table."""
    pairs = left.join(table, on=on, how=how, nulls_equal=False, maintain_order="left_right") if on else None
    if pairs is None:
        pairs = left.join(table, how="cross", maintain_order="left_right")
    return pairs.select("row", "place" if "place" in pairs.columns else pl.lit(None, pl.Int64)).rows()


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Schema, list[dict[str, Any]], list[dict[str, Any]]]:
    """Keys of one or two columns, rows of a left side, and those of a table."""
    kinds = draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=2))
    schema = pa.schema([(f"k{i}", kind) for i, kind in enumerate(kinds)])
    each = {f.name: st.none() | st.sampled_from(KEYS[f.type]) for f in schema}
    rows = st.lists(st.fixed_dictionaries(each), max_size=6)
    return schema, draw(rows), draw(rows)


PLAIN = ("semi", "anti")


@pytest.fixture(params=["in memory", "on disk"])
def place(request, monkeypatch) -> str:
    """Where the columns of a table are."""
    if request.param == "on disk":
        store = keyed_table._Store
        monkeypatch.setattr(keyed_table, "_Store", lambda schema, most_bytes: store(schema, -1))
    return str(request.param)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("how", "matches"), [(h, m) for h in HOWS for m in MATCHES if h not in PLAIN or m == "rows"])
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=tables())
def test_it_finds_what_a_join_of_polars_finds_and_loses_no_row(tmp_path_factory, how, matches, drawn):
    keys, left, right = drawn
    left = [{"row": i, **row} for i, row in enumerate(left)]
    right = [{**row, "place": i} for i, row in enumerate(right)]
    path = write(tmp_path_factory.mktemp("t") / "t.parquet", right, keys.append(pa.field("place", pa.int64())))
    adds = how not in PLAIN
    on = [] if how == "cross" else keys.names
    more = {"columns": ["place"], "prefix": "of_"} if adds else {}
    schema = pa.schema([ROW, *keys])
    found = outcome(lookup(path, on, {"empty": "ok"}, how=how, matches=matches, **more), left, schema)
    of_left = pl.DataFrame(pa.Table.from_pylist(left, schema=schema))
    of_table = pl.DataFrame(pa.Table.from_pylist(right, schema=pq.read_schema(path)))
    pairs = joined(of_left, of_table, on, how)
    expected: dict[Any, Any] = {}
    if not adds:
        expected = {(row, ()): {} for row, _ in pairs}
    elif matches == "rows":
        for row, place in pairs:
            number = sum(key[0] == row for key in expected)
            expected[row, (number,)] = {"of_place": place}
    else:
        for row, place in pairs:
            expected.setdefault((row, ()), []).append(place)
        for key, places in expected.items():
            value = places[0] if matches == "first" else None if places == [None] else places
            expected[key] = {"of_place": value}
    made = {key: {n: v for n, v in row.items() if n == "of_place"} for key, row in found.rows.items()}
    assert list(made.items()) == list(expected.items())
    assert len(left) + found.expanded == len(found.rows) + len(found.rejects)
    assert {row for (row, _), _ in found.rejects.items()} == {row["row"] for row in left} - {row for row, _ in pairs}
    assert {kind for kind, _ in found.rejects.values()} <= {"filtered"}


@pytest.mark.parametrize("matches", MATCHES)
def test_a_large_table_goes_on_in_small_batches(tmp_path, matches, place):
    rows = 3 * PIECE_ROWS + 5
    write(
        tmp_path / "t.parquet", [{"k": 1, "v": i} for i in range(rows)], pa.schema({"k": pa.int32(), "v": pa.int64()})
    )
    op = lookup(tmp_path / "t.parquet", matches=matches)
    schema = pa.schema([ROW, LINEAGE, ("k", pa.int64())])
    assert op.plan(schema).field("v").type == (pa.list_(pa.int64()) if matches == "list" else pa.int64())
    data = pa.record_batch([[7, 7, 8, 9], [[0], [1], None, None], [1, 1, None, 2]], schema=schema)
    batches = [item for item in op.process(Batch(0, data)) if isinstance(item, Batch)]
    (need,) = op.memory_needs()
    assert ("bytes, and" in need.what) == (need.size_bytes == 24 * rows) == (place == "on disk")
    assert not [*Path(tempfile.gettempdir()).glob("table-*.arrow")]
    made = [row for batch in batches for row in batch.data.to_pylist()]
    values = list(range(rows))
    if matches == "rows":
        assert max(batch.num_rows for batch in batches) == PIECE_ROWS
        assert [r["v"] for r in made] == [*values, *values, None, None]
        assert [r["lineage"] for r in made] == [[0, i] for i in values] + [[1, i] for i in values] + [[0], [0]]
    else:
        value = values if matches == "list" else 0
        assert [(r["v"], r["lineage"]) for r in made] == [(value, [0]), (value, [1]), (None, None), (None, None)]
    assert sum(batch.expanded for batch in batches) == len(made) - 4


PEOPLE = pa.schema({"k": pa.string(), "name": pa.string(), "n": pa.int64()})
LEFT = pa.schema([ROW, ("k", pa.string()), ("n", pa.int64())])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"columns": ["name", "n"]}, SchemaError, "would add the column 'n', which the rows have already.*prefix"),
        ({"on": "nothing"}, SchemaError, "needs a column 'nothing'"),
        ({"on": {"k": "nam"}}, SchemaError, "the table has no column 'nam'; did you mean name"),
        ({"on": {"k": "n"}}, SchemaError, "column 'k' is string and 'n' of the table is int64.*types: {n: string}"),
        ({"columns": ["x"]}, SchemaError, "the table has no column 'x'; it has k, name, n"),
        ({"columns": ["n", "n"]}, ConfigError, "it has each name once"),
        ({"columns": []}, ConfigError, "how: semi adds none"),
        ({"on": None}, ConfigError, "how: left needs a key; write on: NAME"),
        ({"how": "cross"}, ConfigError, "how: cross takes no key"),
        ({"how": "outer"}, ConfigError, "how='outer' cannot work: it is one of left, inner"),
        ({"how": "semi", "columns": ["n"]}, ConfigError, "how: semi adds no columns, so columns says nothing"),
        ({"how": "anti", "matches": "list"}, ConfigError, "so matches says nothing"),
        ({"columns": ["n"], "table": {"rename": {"n": "lineage"}}}, SchemaError, "the table has no column 'n'"),
        (
            {"columns": ["lineage"], "table": {"rename": {"n": "lineage"}}},
            ConfigError,
            "cannot be added; give it another",
        ),
        ({"table": {"memory_limit": "9"}}, InputError, "more than table.memory_limit allows .9.; raise it"),
        ({"table": {"memory_limit": "some"}}, ConfigError, "table.memory_limit='some' cannot work: it is a number of"),
        ({"table": {"prompt_column": "n"}}, ConfigError, "table.prompt_column is about prompts"),
        ({"table": {"format": "csw"}}, ConfigError, "table.format='csw' cannot work"),
        ({"table": {"types": {"n": "string"}}}, ConfigError, "table.types is for files without types"),
    ],
)
def test_what_cannot_work_is_refused_with_its_key_and_a_remedy(tmp_path, arguments, error, message):
    path = write(tmp_path / "t.parquet", [{"k": "a", "name": "b", "n": 1}], PEOPLE)
    arguments = {"columns": None if arguments.get("how") else ["name"], **arguments}
    with pytest.raises(error, match=message):
        outcome(lookup(path, **arguments), [{"row": 0, "k": "a", "n": 1}], LEFT)


def test_a_table_is_read_as_data_is_and_a_line_that_is_no_row_is_an_error(tmp_path):
    (tmp_path / "t.csv").write_text("k;v\n01;é\n02;f\n", encoding="latin-1")
    keys = {"types": {"k": "string"}, "separator": ";", "encoding": "latin-1", "rename": {"v": "w"}, "limit": 1}
    schema = pa.schema([ROW, ("k", pa.string())])
    rows = outcome(lookup(tmp_path / "t.csv", table=keys), [{"row": 0, "k": "01"}, {"row": 1, "k": "02"}], schema).rows
    assert [row["w"] for row in rows.values()] == ["é", None]
    (tmp_path / "t.jsonl").write_text('{"k": "a", "v": 1}\n{"k": \n')
    with pytest.raises(InputError, match=r"t\.jsonl, line 2: .*a table has no rejects: mend the line"):
        outcome(lookup(tmp_path / "t.jsonl"), [{"row": 0, "k": "a"}], schema)
    with pytest.raises(InputError, match=r"table\.path=.*nothing\.csv does not exist"):
        outcome(lookup(tmp_path / "nothing.csv"), [], schema)


def test_a_table_that_changes_between_the_plan_and_the_run_is_refused(tmp_path):
    path = write(tmp_path / "t.parquet", [{"k": "a", "name": "b", "n": 1}], PEOPLE)
    op = lookup(path)
    op.plan(pa.schema([ROW, ("k", pa.string())]))
    before = op.fingerprint()
    write(path, [{"k": "a", "name": "b", "n": 2}] * 9, PEOPLE)
    with pytest.raises(InputError, match=r"t\.parquet was written to while the run was reading it"):
        list(op.memory_needs())
    other = lookup(path)
    other.plan(pa.schema([ROW, ("k", pa.string())]))
    assert before != other.fingerprint()
    (need,) = other.memory_needs()
    assert need.what == f"table {path}: 9 rows, {need.size_bytes} bytes"
    assert need.size_bytes > 9 * (16 + 8 + 8 + 1)


def test_rows_with_an_older_version_are_no_table(tmp_path):
    schema = pa.schema([ROW, ("supersedes", pa.int64()), ("k", pa.string())])
    left = pa.schema([ROW, ("k", pa.string())])
    one, two = ({"row": i, "supersedes": old, "k": "a"} for i, old in ((0, None), (1, 0)))
    assert outcome(lookup(write(tmp_path / "a.parquet", [one], schema)), [], left).rows == {}
    with pytest.raises(InputError, match="newer and older versions"):
        outcome(lookup(write(tmp_path / "b.parquet", [one, two], schema)), [{"row": 0, "k": "a"}], left)


def test_a_key_of_data_is_about_files_or_is_refused_for_a_table():
    of_files = {"path", "storage_options", "dataset", "config", "split", "revision", "empty"}
    of_files |= {field.name for field in fields(DataSettings) if field.metadata.get("reads")}
    assert {field.name for field in fields(DataSettings)} - of_files == set(OF_PROMPTS)


def test_a_reject_says_what_it_did_not_find(tmp_path):
    path = write(tmp_path / "t.parquet", [{"k": "a", "name": "b", "n": 1}], PEOPLE)
    batch = Batch(0, pa.record_batch([[0, 1], ["a", None]], schema=pa.schema([ROW, ("k", pa.string())])))
    for how, rows, reason in (
        ("inner", [1], "no row of the table has this k"),
        ("anti", [0], "a row of the table has this k"),
    ):
        op = lookup(path, how=how)
        op.plan(batch.data.schema)
        rejects = [r for item in op.process(batch) if isinstance(item, Rejects) for r in item.rows]
        assert [(r.row, r.reason, r.kind) for r in rejects] == [(i, reason, "filtered") for i in rows]
