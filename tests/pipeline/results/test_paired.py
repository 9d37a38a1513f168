"""Booleans and numbers of two runs, paired by row."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.results.compare import Joined, joined
from pipeline.results.paired import mcnemar
from tests.pipeline.results.test_compare import made

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


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [
        (0, 0, 1.0),
        (0, 1, 1.0),
        (1, 1, 1.0),
        (0, 6, 2 / 64),
        (1, 9, 22 / 1024),
        (5, 15, 0.04138946533203125),
        (40, 40, 1.0),
    ],
)
def test_the_p_value_of_known_cases(only_a, only_b, p):
    assert mcnemar(only_a, only_b) == pytest.approx(p, rel=1e-12)


@given(st.integers(0, 300), st.integers(0, 300))
def test_the_p_value_is_twice_the_tail_of_the_binomial_distribution(only_a, only_b):
    n, k = only_a + only_b, min(only_a, only_b)
    exact = min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n)
    assert mcnemar(only_a, only_b) == pytest.approx(exact, rel=1e-9) == mcnemar(only_b, only_a)


def test_the_p_value_of_many_rows_is_that_of_the_normal_distribution():
    for n, z in ((10**6, 3), (10**9, 2)):
        k = int((n - z * math.sqrt(n)) / 2)
        with_continuity = (abs(n - 2 * k) - 1) / math.sqrt(n)
        assert mcnemar(k, n - k) == pytest.approx(math.erfc(with_continuity / math.sqrt(2)), rel=1e-4)
    assert mcnemar(0, 10**9) == 0.0


def test_the_shares_and_means_of_rows_in_which_both_have_a_value(tmp_path):
    found = compared(tmp_path, rows_of(0), rows_of(1))
    (true,) = found.shares
    assert (*true, true.p) == ("correct", 5, 4, 3, 2, 1, 1.0)
    score, tokens = found.means
    # The differences are 0.5, 0 and -0.25: their variance is 7/48.
    assert list(score[1:6]) == pytest.approx([3, 3.5 / 3, 1.25, 0.25 / 3, math.sqrt(7 / 48 / 3)])
    assert score.differ == 4  # NaN against 3.0 and 4.0 against null, too
    assert (tokens.column, tokens.rows, tokens.differ) == ("tokens", 6, 2)  # beyond 2**53 too
    assert [c.column for c in found.columns] == ["completion", "correct"]
    assert [d.key for d in found.columns[1].first] == ["row 1", "row 3", "row 4"]


def test_exchanging_the_runs_mirrors_the_figures(tmp_path):
    one, other = (compared(tmp_path / str(i), rows_of(i), rows_of(1 - i)) for i in range(2))
    mirror = [(s.column, s.rows, s.true_b, s.true_a, s.only_b, s.only_a) for s in one.shares]
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
    assert [tuple(s) for s in found.shares] == [("ok", 2, 1, 1, 0, 0)]
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
