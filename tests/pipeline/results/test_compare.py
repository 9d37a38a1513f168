"""`compare`: what two runs have in common and where they part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.results.compare import content_differences, joined, setting_differences
from pipeline.results.reader import Results
from tests.pipeline.runs.test_job import job, run


def made(directory: Path, rows: list[dict[str, Any]], id_column: str | None = None) -> Results:
    """A run of which only the rows are there."""
    (directory / "data").mkdir(parents=True)
    pl.DataFrame(rows).write_parquet(directory / "data/part-00000.parquet")
    shard = {"path": "data/part-00000.parquet", "chunk": 0, "rows": len(rows)}
    return Results(directory, {"job": "x", "shards": [shard]}, {"data": {"id_column": id_column}})


def texts(*values: str, ids: str | None = None) -> list[dict[str, Any]]:
    names = ids or "abcdefghij"
    return [{"row": i, "id": names[i], "completion": value} for i, value in enumerate(values)]


def test_a_run_agrees_with_itself_in_everything(tmp_path, capsys):
    run(job(tmp_path / "a"))
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a")]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "settings: the same" in shown
    assert "45 in both, 0 only in A, 0 only in B" in shown
    assert shown.count("100.0 % the same (45 of 45)") == 2  # x and y
    assert not {"differs", "+", "rejects that"} & set(shown.split())


def test_runs_that_differ_are_told_apart_and_the_exit_code_is_0(tmp_path, capsys):
    run(job(tmp_path / "a"))
    run(job(tmp_path / "b", rows=30, square={"add": 1, "bad": [3]}, seed=7, max_error_rate=1.0))
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "seed: 0 -> 7" in shown
    assert "nodes.square.op.add: (absent) -> 1" in shown
    assert "output_dir" not in shown
    assert "rows of data, joined by row: 29 in both, 16 only in A, 0 only in B" in shown
    assert "x: 100.0 % the same" in shown
    assert "y: 0.0 % the same (0 of 29)\n    row 0\n      A  0\n      B  1\n    row 1\n" in shown
    assert "        0         1  error at square: unlucky number" in shown
    assert "rows done" in shown


@pytest.mark.parametrize("arguments", [[], ["a"], ["a", "b", "c"], ["a", "nowhere"], ["a", "html=x"]])
def test_what_is_no_pair_of_runs_is_exit_code_2(tmp_path, monkeypatch, capsys, arguments):
    run(job(tmp_path / "a", rows=1))
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == ExitCode.CONFIG
    assert "outputs/" in capsys.readouterr().err


def test_rows_are_joined_by_their_id_wherever_they_stand(tmp_path):
    a = made(tmp_path / "a", texts("one", "two", "three"), "id")
    b = made(tmp_path / "b", texts("three", "one", "two", ids="cab"), "id")
    found = joined(a, b, "data")
    assert found is not None
    assert (found.keys, found.both, found.columns[0].equal) == (["id"], 3, 3)


def test_an_id_that_does_not_tell_rows_apart_is_not_used(tmp_path):
    a = made(tmp_path / "a", texts("one", "two", "three", ids="aab"), "id")
    b = made(tmp_path / "b", texts("one", "two", "four", ids="aab"), "id")
    found = joined(a, b, "data")
    assert found is not None
    assert (found.keys, found.both, found.columns[0].equal) == (["row"], 3, 2)


def test_samples_of_a_row_are_told_apart_by_their_lineage(tmp_path):
    rows = [{"row": 0, "lineage": [i], "completion": text} for i, text in enumerate(["one", "two", "three"])]
    a = made(tmp_path / "a", rows)
    b = made(tmp_path / "b", [rows[2], {**rows[0], "completion": "other"}])
    found = joined(a, b, "data")
    assert found is not None
    assert (found.keys, found.both, found.only_a, found.only_b) == (["row", "lineage"], 2, 1, 0)
    ((difference,),) = [column.first for column in found.columns]
    assert (difference.key, difference.a, difference.b) == ("row 0, lineage 0", "one", "other")


def test_only_texts_count_where_there_are_any_and_null_equals_null(tmp_path):
    rows = [{"row": i, "seed": i, "judge_completion": text} for i, text in enumerate(["yes", None, None])]
    other = [{**row, "seed": 9} for row in rows]
    other[2]["judge_completion"] = "no"
    found = joined(made(tmp_path / "a", rows), made(tmp_path / "b", other), "data")
    assert found is not None
    assert [(column.column, column.equal) for column in found.columns] == [("judge_completion", 2)]


def test_vectors_are_compared_too(tmp_path):
    rows = [{"row": 0, "embedding": [0.5, 0.25]}, {"row": 1, "embedding": [1.0, 2.0]}]
    other = [rows[0], {"row": 1, "embedding": [1.0, 2.5]}]
    found = joined(made(tmp_path / "a", rows), made(tmp_path / "b", other), "data")
    assert found is not None
    assert [(column.column, column.equal) for column in found.columns] == [("embedding", 1)]


def test_the_first_differences_come_in_the_order_of_the_rows(tmp_path):
    a = made(tmp_path / "a", texts(*"abcdefghij"), "id")
    b = made(tmp_path / "b", texts(*"aBcDEFGhij"), "id")
    found = joined(a, b, "data")
    assert found is not None
    assert [d.key for d in found.columns[0].first] == ["id b", "id d", "id e"]


def test_long_texts_are_shown_from_where_they_part_and_control_no_terminal(tmp_path, capsys):
    same = "s" * 500
    for side, end in (("a", "\x1b[2Jred"), ("b", "\x1b[2Jblue")):
        results = made(tmp_path / side, texts(f"{same}{end}"))
        (tmp_path / side / "manifest.json").write_text(json.dumps(dict(results.manifest)))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "the first 504 characters are the same" in shown
    assert "A  ...ssssssssssssssss\\x1b[2Jred\n" in shown
    assert "\x1b" not in shown


def test_a_group_that_a_node_was_given_is_named_by_the_key_that_users_type(tmp_path):
    def config(slots: int, own: int) -> dict[str, Any]:
        group = {"slots": slots}
        return {"runtime": group, "nodes": {"generate": {"op": {"runtime": group, "own": own}}}}

    def results(slots: int, own: int, content: str) -> Results:
        keys = {"runtime.slots": slots, "nodes.read.content": content}
        return Results(tmp_path, {"fingerprint": {"keys": keys}}, config(slots, own))

    a, b = results(16, 1, "x"), results(32, 2, "y")
    assert setting_differences(a, b) == ["nodes.generate.op.own: 1 -> 2", "runtime.slots: 16 -> 32"]
    assert content_differences(a, b) == ['nodes.read.content: "x" -> "y"']
