"""The verdict of a run that the user does not name, and the labels that people may choose from."""

from __future__ import annotations

import polars as pl
import pytest

from pipeline.api.errors import ConfigError
from pipeline.cli.main import main
from pipeline.labels.sample import By
from pipeline.labels.verdict_column import choices_of, guessed_by
from pipeline.run_dir.names import REVIEW
from tests.pipeline.labels.runs import run_of
from tests.pipeline.labels.test_page import data_of

ROWS = pl.LazyFrame(
    {
        "text": [str(i) for i in range(60)],
        "topic": ["art", "law", "sport"] * 20,
        "fair": [True] * 60,
        "right": ["yes"] * 60,
        "right_probability": [0.5] * 60,
        "points": [4.0, 5.0] * 30,
        "never": pl.Series([None] * 60, dtype=pl.String),
    }
)
NODES = {
    "right": {"step": "right", "op": {"options": ["yes", "no"]}},
    "points": {"step": "points", "op": {"sampling": {"structured": {"choices": ["3", "4", "5"]}}}},
    "generate": {"op": {"sampling": {"structured": {"choices": ["art", "law", "sport", "war"]}}}},
    "named_by_rows": {"op": {"options": "topic"}},
    "none": {"step": "text", "op": {"sampling": {"structured": None}}},
}


def test_the_verdict_is_what_most_speaks_for():
    right = By("right", ("right",), "right_probability")
    assert guessed_by(ROWS, ["text", "right", "fair", "topic"], {}) == right
    without = ROWS.drop("right_probability")
    assert guessed_by(without, ["right", "fair", "topic"], {"nodes": NODES}) == By("right", ("right",))
    assert guessed_by(without, ["right", "fair", "topic"], {}) == By("fair", ("fair",))
    assert guessed_by(without, ["text", "topic"], {}) == By("topic", ("topic",))
    assert guessed_by(ROWS, ["text", "points"], {}) is None
    assert guessed_by(ROWS.head(14), ["text", "topic"], {}) is None  # so few rows have few texts
    with pytest.raises(ConfigError, match="each of right, topic can be the verdict; name it with --by"):
        guessed_by(without, ["right", "topic"], {})


def test_people_choose_from_what_the_judge_might_have_said():
    assert choices_of(ROWS, "right", {"nodes": NODES}) == ["yes", "no"]
    assert choices_of(ROWS, "points", {"nodes": NODES}) == ["3.0", "4.0", "5.0"]
    assert choices_of(ROWS, "topic", {"nodes": NODES}) == ["art", "law", "sport", "war"]
    assert choices_of(ROWS, "topic", {}) == ["art", "law", "sport"]
    assert choices_of(ROWS, "fair", {}) == ["false", "true"]
    other = {"nodes": {"right": {"step": "right", "op": {"options": ["A", "B"]}}}}  # a later step made words of them
    for column, config in (("right", {}), ("right", other), ("never", {"nodes": {"generate": NODES["generate"]}})):
        with pytest.raises(ConfigError, match="name what people choose from: --choices yes,no"):
            choices_of(ROWS, column, config)


def test_a_name_that_is_given_twice_counts_once(tmp_path):
    directory = run_of(tmp_path / "out", [{"q": f"{i}", "verdict": "ab"[i % 2]} for i in range(20)])
    assert main(["review", str(directory), "--columns", "q,q,verdict", "--by", "verdict,verdict"]) == 0
    head = data_of(directory / REVIEW)[1]["head"]
    assert (head["columns"], head["choices"]) == (["q", "verdict"], ["a", "b"])
