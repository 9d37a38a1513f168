"""Transforms around a Generate, in a job on the small model that ships: what comes out, and that it is always that."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main

JOB = """
# People out of records: distinct prompts, six of them, parsed.
defaults:
  - override /flow: generate
  - override /model: tiny
data: {path: "${project:jobs/data/extract.jsonl}", limit: 16}
chunk_rows: 4
progress: none
sampling:
  max_tokens: 40
  structured:
    json_schema:
      type: object
      properties: {name: {type: string, maxLength: 20}, age: {type: integer, minimum: 0, maximum: 130}}
      required: [name, age]
nodes:
  distinct: {inputs: read, op: {_target_: operators.dedup.Dedup, columns: [prompt], near: {column: prompt}}}
  six: {inputs: distinct, op: {_target_: operators.limit.Limit, rows: 6}}
  render: {inputs: six}
  parse:
    inputs: generate
    op: {_target_: operators.parse_json.ParseJson, column: completion, fields: {name: string, age: int64}}
  line:
    inputs: parse
    op: {_target_: operators.map.Map, columns: {adult: age >= 18}, templates: {line: "{{ name }}: {{ age }}"}}
  slim: {inputs: line, op: {_target_: operators.columns.Select, columns: [line, adult, age, name]}}
  write: {inputs: slim}
  raw:
    inputs: generate
    op: {_target_: operators.sinks.write_rows.WriteRows, output: "${output}", directory: raw}
"""


def run(folder: Path, name: str, *arguments: str) -> dict[str, bytes]:
    (folder / "people.yaml").write_text(JOB)
    assert main([f"job={folder}/people.yaml", f"output_dir={folder}/{name}", *arguments]) == ExitCode.DONE
    return {p.relative_to(folder / name).as_posix(): p.read_bytes() for p in (folder / name).glob("[dr]*/**/*.*")}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("people")
    return folder, run(folder, "out", "runtime.slots=4")


def rows(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])


def test_the_columns_are_those_of_the_transforms(made):
    folder, _ = made
    table = rows(folder / "out/data")
    assert table.schema.names == ["row", "line", "adult", "age", "name"]
    assert 1 <= len(table) <= 6
    for row in table.to_pylist():
        assert row["line"] == f"{row['name']}: {row['age']}"
        assert row["adult"] == (row["age"] >= 18)


def test_both_branches_have_their_rows_and_no_more_are_read_than_are_needed(made):
    folder, files = made
    raw, slim = rows(folder / "out/data/raw"), rows(folder / "out/data")
    rejects = rows(folder / "out/rejects").to_pylist()
    assert len(raw) == 6
    assert len(slim) + sum(r["node"] == "parse" for r in rejects) == 6
    found = set(raw["row"].to_pylist()) | {r["row"] for r in rejects}
    assert found == set(range(len(found)))
    assert len(found) < 16
    assert not [name for name in files if name.endswith(".tmp")]


def test_slots_and_open_chunks_do_not_show(made):
    folder, files = made
    assert run(folder, "other", "runtime.slots=2", "max_open_chunks=1") == files
