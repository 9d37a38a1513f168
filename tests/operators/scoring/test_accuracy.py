"""The table of accuracy: Wilson's intervals where a row is a prompt, wider ones where rows of a prompt agree; what is
not counted is said."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from operators.scoring.accuracy import Sums, accuracy_lines, counted
from pipeline.api.intervals import wilson

COUNTS = {"error_rejects": 0, "filtered_rejects": 0}


def results(directory: Path, frame: pl.DataFrame, **counts: int) -> Path:
    """A run's folder with `frame` in two files of data/."""
    (directory / "data").mkdir()
    for part, rows in enumerate((frame[: len(frame) // 2], frame[len(frame) // 2 :])):
        rows.write_parquet(directory / f"data/part-{part:05d}.parquet")
    manifest = {"counts": COUNTS | counts, "schema": {"data": {}}}
    (directory / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return directory


def rows(correct: Sequence[bool | None], **columns: Any) -> pl.DataFrame:
    return pl.DataFrame({"row": range(len(correct)), "correct": pl.Series(correct, dtype=pl.Boolean), **columns})


def test_the_table(tmp_path):
    frame = rows([True] * 6 + [False] * 2 + [None], subject=["a", "b"] * 4 + ["b"], level=[1] * 8 + [2])
    lines = list(accuracy_lines(results(tmp_path, frame, error_rejects=1, filtered_rejects=3), ["subject"], "correct"))
    assert lines == [
        "subject  right  rows  accuracy  95 % interval",
        "a            3     4     75.0%  30.1 to 95.4%",
        "b            3     4     75.0%  30.1 to 95.4%",
        "all          6     8     75.0%  40.9 to 92.9%",
        "2 rows have no grade (errors) and are not counted; as wrong ones they would make it 60.0%",
        "3 rows were filtered out and are not counted",
    ]


def test_two_columns_are_one_group_and_nulls_are_a_value(tmp_path):
    frame = rows([True, False, True], subject=["a", "a", None], level=[1, 2, 2])
    lines = list(accuracy_lines(results(tmp_path, frame), ["subject", "level"], "correct"))
    assert [line.split()[:4] for line in lines[1:]] == [
        *(["(null)", "2", "1", "1"], ["a", "1", "1", "1"], ["a", "2", "0", "1"], ["all", "2", "3", "66.7%"])
    ]


def test_groups_that_look_alike_are_told_apart(tmp_path):
    long = "x" * 50
    frame = rows([True, False, True, True, False], subject=[None, "(null)", f"{long} 1", f"{long} 2", ""])
    lines = list(accuracy_lines(results(tmp_path, frame), ["subject"], "correct"))
    assert [line.rsplit(maxsplit=6)[0] for line in lines[1:-1]] == ["(null)", "''", "(null) (2)", "...", "... (2)"]


def test_of_many_groups_the_largest_are_shown(tmp_path):
    names = [f"g{i:05d}" for i in range(10_000)] + ["big"] * 3
    lines = list(accuracy_lines(results(tmp_path, rows([True] * len(names), g=names)), ["g"], "correct"))
    assert len(lines) == 23
    assert lines[1].split()[:3] == ["big", "3", "3"]
    assert lines[-1] == "and 9,981 groups with fewer rows"


def test_without_a_grade_or_a_column_it_says_so(tmp_path):
    directory = results(tmp_path, rows([None, None]))
    assert list(accuracy_lines(directory, [], "correct")) == ["2 rows have no grade (errors) and are not counted"]
    assert list(accuracy_lines(directory, ["x"], "correct")) == ["no accuracy is told: data/ has no column 'x'"]


def test_of_rows_replaced_by_newer_ones_the_newest_counts(tmp_path):
    frame = rows([False, True, True], supersedes=pl.Series([None, None, 0], dtype=pl.Int64))
    assert "100.0%" in list(accuracy_lines(results(tmp_path, frame), [], "correct"))[1]


@pytest.mark.parametrize("right", [0, 1, 7, 10])
def test_with_a_row_a_prompt_the_interval_is_wilsons(right):
    frame = rows([True] * right + [False] * (10 - right))
    for lineage in ({}, {"lineage": [[0]] * 10}):
        (sums,) = counted(frame.with_columns(**lineage).lazy(), [], ["correct"])[()]
        assert sums.interval(boolean=True) == pytest.approx(wilson(right, 10))


def samples(correct: np.ndarray) -> Sums:
    """Of bool [prompts, samples] the sums."""
    prompts, each = correct.shape
    frame = pl.DataFrame({"row": np.repeat(np.arange(prompts), each), "correct": correct.ravel()})
    return counted(frame.lazy().with_columns(lineage=pl.lit(0)), [], ["correct"])[()][0]


def test_samples_that_always_agree_count_as_one_row():
    once = np.arange(30)[:, None] % 3 == 0
    sums = samples(np.repeat(once, 8, axis=1))
    assert (sums.rows, sums.prompts) == (240, 30)
    assert sums.interval(boolean=True) == pytest.approx(wilson(10, 30))


def test_samples_that_are_all_the_same_in_each_prompt_do_not_make_it_sure():
    half = np.tile([True, False], (2, 4))
    assert samples(half).interval(boolean=True) == pytest.approx(wilson(1, 2))


def test_samples_tell_at_most_as_much_as_independent_rows():
    nearly = np.tile([True, False], (30, 2))
    nearly[0] = True
    assert samples(nearly).interval(boolean=True) == pytest.approx(wilson(62, 120))


def test_how_many_prompts_rows_are_of_is_said(tmp_path):
    frame = rows([True] * 6, lineage=[[0]] * 6).with_columns(row=pl.Series([0, 0, 0, 1, 1, 1]))
    assert list(accuracy_lines(results(tmp_path, frame), [], "correct"))[1:] == [
        "all      6     6    100.0%  34.2 to 100.0%",
        "they are of 2 prompts; rows of one prompt depend on each other, and the intervals are over prompts",
    ]


@pytest.mark.laws
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_interval_over_prompts_covers_what_it_says(rate):
    """Each prompt has a rate of its own (a beta distribution around `rate`), and 4 samples."""
    rng, draws, covered, plain = np.random.default_rng(7), 1000, 0, 0
    for _ in range(draws):
        each = rng.beta(rate, 1 - rate, 60)
        correct = rng.random((60, 4)) < each[:, None]
        sums = samples(correct)
        interval, independent = sums.interval(boolean=True), wilson(sums.total, sums.rows)
        covered += interval.low <= rate <= interval.high
        plain += independent.low <= rate <= independent.high
    assert 0.92 < covered / draws < 0.97
    assert plain / draws < 0.85, "as if all rows were independent"


def test_f1_is_told_beside_the_accuracy(tmp_path):
    frame = rows([True, False, False], f1=[1.0, 0.5, 0.0])
    lines = list(accuracy_lines(results(tmp_path, frame), [], "correct", "f1"))
    assert re.split(r"  +", lines[0].strip()) == ["right", "rows", "accuracy", "95 % interval", "F1", "95 % interval"]
    assert re.split(r"  +", lines[1])[5] == "50.0%"
