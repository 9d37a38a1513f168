"""`compare`: what two runs have in common and where they part, with their booleans and numbers paired by row."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.results.compare import Joined, content_differences, joined, setting_differences
from pipeline.results.reader import Results
from tests.pipeline.squares import job, run


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


def test_of_several_runs_each_is_compared_with_the_first(tmp_path, capsys):
    names = [str(tmp_path / letter) for letter in "abc"]
    for at, (name, rows) in enumerate(zip(names, (45, 30, 45), strict=True)):
        run(job(Path(name), rows=rows, square={"add": at // 2, "bad": [3, 4][: 2 * at]}, max_error_rate=1.0))
    pairs = []
    for other in names[1:]:
        capsys.readouterr()
        assert main(["compare", names[0], other]) == ExitCode.DONE
        pairs.append(capsys.readouterr().out)
    assert main(["compare", *names]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert shown.startswith("".join(f"{letter}  {name}\n" for letter, name in zip("ABC", names, strict=True)))
    assert re.search(r"\n +A +B +C\n", shown)
    assert re.search(r"\nrows done +45 +30 +45\n", shown)
    assert re.search(r"  +A +B +C\n +0 +2 +2  error at square: unlucky number", shown)
    for pair, letter, name in zip(pairs, "BC", names[1:], strict=True):
        _, about = shown.split(f"{letter} against A: {name}\n")
        for section in (part for part in pair.split("\n\n") if part.startswith(("settings", "what else", "rows of"))):
            as_c = re.sub(r"\bB\b", letter, section)
            assert [line.split() for line in as_c.splitlines()] == [
                line.split()
                for line in about[about.index(as_c.splitlines()[0]) :].splitlines()[: len(as_c.splitlines())]
            ], "as of the two alone, with its own letter"


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


BIG = (1 << 62) + 1
SIDES = [
    # completion, correct, score, tokens of the rows of A and of B
    (["a", "b", "c", "d", "e", "f"], ["a", "x", "c", "y", "z", None]),
    ([True, True, True, False, None, True], [True, False, True, True, True, False]),
    ([1.0, 2.0, math.nan, 4.0, math.inf, 0.5], [1.5, 2.0, 3.0, None, math.inf, 0.25]),
    ([BIG, 1, 2, 3, 4, 5], [BIG - 1, 1, 2, 3, 4, 7]),
]


def rows_of(side: int) -> list[dict[str, Any]]:
    names = ("completion", "correct", "score", "tokens")
    values = zip(*(column[side] for column in SIDES), strict=True)
    return [{"row": i, "seed": 9 * i + side, **dict(zip(names, v, strict=True))} for i, v in enumerate(values)]


def compared(folder: Path, a: list[dict[str, Any]], b: list[dict[str, Any]], id_column: str | None = None) -> Joined:
    folder.mkdir(exist_ok=True)
    found = joined(made(folder / "a", a, id_column), made(folder / "b", b, id_column), "data")
    assert found is not None
    return found


def test_the_shares_and_means_of_rows_in_which_both_have_a_value(tmp_path):
    found = compared(tmp_path, rows_of(0), rows_of(1))
    (true,) = found.shares
    assert (*true, true.p) == ("correct", 5, 4, 3, 2, 1, 2, 1, 1.0)
    score, tokens = found.means
    # The differences are 0.5, 0 and -0.25: their variance is 7/48.
    assert list(score[1:6]) == pytest.approx([3, 3.5 / 3, 1.25, 0.25 / 3, math.sqrt(7 / 48 / 3)])
    assert score.differ == 4  # NaN against 3.0 and 4.0 against null, too
    assert (tokens.column, tokens.rows, tokens.differ) == ("tokens", 6, 2)  # beyond 2**53 too
    assert [c.column for c in found.columns] == ["completion", "correct"]
    assert [d.key for d in found.columns[1].first] == ["row 1", "row 3", "row 4"]


def test_of_samples_the_prompts_are_what_differs_by_chance(tmp_path):
    a: list[dict[str, Any]] = [
        {"row": i // 2, "lineage": [i % 2], "completion": "x", "ok": i > 3, "n": i * 1.0} for i in range(12)
    ]
    b = [{**row, "ok": row["ok"] or row["row"] == 0, "n": row["n"] + row["row"]} for row in a]
    found = compared(tmp_path, a, b)
    assert [tuple(s) for s in found.shares] == [("ok", 12, 8, 10, 0, 2, 0, 1)]
    assert found.shares[0].p == 1.0, "one prompt, where McNemar's test of rows would have 0.5"
    (mean,) = found.means
    once = compared(tmp_path / "once", a[::2], [{**row, "n": row["n"] + row["row"]} for row in a[::2]]).means[0]
    assert mean.difference == once.difference == 2.5
    assert mean.standard_error == pytest.approx(once.standard_error), "samples that agree tell no more than one"


def test_a_run_of_samples_has_no_partners_in_one_without(tmp_path, capsys):
    a = [{"row": i, "completion": "x", "ok": True} for i in range(2)]
    b = [{**row, "lineage": [i]} for row in a for i in range(3)]
    for side, rows in (("a", a), ("b", b), ("c", b[::3])):
        results = made(tmp_path / side, rows)
        (tmp_path / side / "manifest.json").write_text(json.dumps(dict(results.manifest)))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == ExitCode.DONE
    assert "rows of data: not joined, neither an id column" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "c")]) == ExitCode.DONE
    assert "joined by row: 2 in both" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "b"), str(tmp_path / "b")]) == ExitCode.DONE
    assert "p and std. error are over prompts" in capsys.readouterr().out


def test_exchanging_the_runs_mirrors_the_figures(tmp_path):
    one, other = (compared(tmp_path / str(i), rows_of(i), rows_of(1 - i)) for i in range(2))
    mirror = [(s.column, s.rows, s.true_b, s.true_a, s.only_b, s.only_a, s.prompts_b, s.prompts_a) for s in one.shares]
    assert mirror == [tuple(s) for s in other.shares]
    assert [s.p for s in one.shares] == [s.p for s in other.shares]
    for m, mirrored in zip(one.means, other.means, strict=True):
        assert (m.column, m.rows, m.mean_b, m.mean_a, m.differ) == (*mirrored[:4], mirrored.differ)
        assert (m.difference or 0) + (mirrored.difference or 0) == pytest.approx(0)
        assert m.standard_error == pytest.approx(mirrored.standard_error)


def test_equal_runs_show_no_difference_wherever_their_rows_stand(tmp_path):
    found = compared(tmp_path, rows_of(0), rows_of(0)[::-1])
    assert [(s.only_a, s.only_b, s.p) for s in found.shares] == [(0, 0, 1.0)]
    assert [(m.difference, m.standard_error, m.differ) for m in found.means] == [(0.0, 0.0, 0)] * 2


def test_only_rows_that_both_have_count_and_what_tells_them_apart_is_no_measure(tmp_path):
    a = [{"row": i, "id": i, "completion": "x", "ok": i < 3, "n": i, "judge_seed": i} for i in range(4)]
    b = [{**a[i], "row": 9 - i, "n": i + 0.5} for i in (2, 3)]
    found = compared(tmp_path, a, [*b, {**b[0], "id": 7, "ok": True}], "id")
    assert [tuple(s) for s in found.shares] == [("ok", 2, 1, 1, 0, 0, 0, 0)]
    assert [tuple(m) for m in found.means] == [("n", 2, 2.5, 3.0, 0.5, 0.0, 2)]


def test_types_that_do_not_go_together_are_left_out_and_one_row_has_no_standard_error(tmp_path):
    a = {"row": 0, "completion": "x", "flag": True, "text": "1", "list": [1.0], "n": 1}
    b = {**a, "flag": 1, "text": 1, "n": 3}
    found = compared(tmp_path, [a], [b])
    assert found.shares == []
    assert [tuple(m) for m in found.means] == [("n", 1, 1.0, 3.0, 2.0, None, 1)]


def test_no_column_name_is_in_the_way_of_another(tmp_path):
    rows = [{"row": 0, "x": 1, "x_b": 2, "b x": 3, "place": 4, "in a": 5, "0": True}]
    found = compared(tmp_path, rows, [{**rows[0], "x": 2}])
    assert {m.column: m.differ for m in found.means} == {"x": 1, "x_b": 0, "b x": 0, "place": 0, "in a": 0}
    assert {c.column: c.equal for c in found.columns} == {"x": 0, "x_b": 1, "b x": 1, "place": 1, "in a": 1, "0": 1}


def test_the_tables_on_the_terminal(tmp_path, capsys):
    for side in range(2):
        directory = tmp_path / "ab"[side]
        results = made(directory, [{**row, "tokens": None, "row_count": 6} for row in rows_of(side)])
        (directory / "manifest.json").write_text(json.dumps(dict(results.manifest)))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "  correct: 33.3 % the same (2 of 6)\n    row 1\n      A  True\n      B  False\n" in shown
    assert shown.endswith(
        """
  true     rows       A       B  A only  B only  p
  correct     5  80.0 %  60.0 %       2       1  1
  mean   rows     A     B   B - A  std. error  differ
  score     3  1.17  1.25  0.0833        0.22       4
  equal in all rows: row_count

"""
    )
