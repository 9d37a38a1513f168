"""The sample of rows to label: strata hold all rows once, each by its name; every stratum is in the sample."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.api.errors import ConfigError
from pipeline.labels.sample import (
    LEAST,
    PLACE,
    By,
    allocation,
    by_columns,
    members,
    sample_of,
    strata,
    values_of,
)


def judged(rows: int = 500, seed: int = 3) -> pl.LazyFrame:
    """Rows of a judge: verdicts, some null, their probabilities, some null or NaN, and samples of each prompt."""
    rng = np.random.default_rng(seed)
    return pl.LazyFrame(
        {
            "row": [i // 2 for i in range(rows)],
            "lineage": [[i % 2] for i in range(rows)],
            "verdict": [(None, "no", "yes")[k] for k in rng.choice(3, rows, p=(0.02, 0.28, 0.7))],
            "verdict_probability": [
                (p, None, math.nan)[i % 41 % 3 if i % 41 < 3 else 0] for i, p in enumerate(rng.random(rows))
            ],
            "good": rng.random(rows) < 0.9,
            "points": rng.integers(1, 6, rows),
        }
    ).with_row_index(PLACE)


BYS = [
    ["verdict", "verdict_probability"],
    ["verdict"],
    ["verdict_probability"],
    ["points", "verdict_probability"],
    ["good", "verdict", "disagreement"],
]


@pytest.mark.parametrize("names", BYS, ids=" ".join)
def test_strata_hold_every_row_once_and_their_names_find_them(names):
    rows = judged()
    by = by_columns(rows, names)
    found = strata(rows, by)
    places = np.concatenate([stratum.places for stratum in found])
    assert sorted(places) == list(range(500))
    sample = sample_of(rows, by, 100, 0)
    assert sum(len(stratum.places) for stratum in sample.strata) == 500
    for some, blind in ((found, False), (sample.strata, True)):
        for stratum in some:
            condition = members(stratum.name(blind=blind), rows.collect_schema())
            assert condition is not None
            among = rows.filter(condition).collect()[PLACE]
            assert sorted(among) == sorted(stratum.places)


@pytest.mark.parametrize("wanted", [12, 40, 100, 499, 500, 900])
def test_every_stratum_is_in_the_sample_and_the_sample_is_as_large_as_wanted(wanted):
    rows = judged()
    sample = sample_of(rows, By("verdict", ("verdict",), "verdict_probability"), wanted, 0)
    assert len(set(sample.places)) == len(sample.places) == min(wanted, 500)
    for i, stratum in enumerate(sample.strata):
        chosen = sample.places[sample.stratum == i]
        assert set(chosen) <= set(stratum.places)
        assert len(chosen) >= min(LEAST, len(stratum.places))


def test_the_seed_decides_rows_and_order_and_nothing_else_does():
    by = By("verdict", ("verdict",), "verdict_probability")
    first, again, other = (sample_of(judged(), by, 50, seed) for seed in (0, 0, 1))
    assert first.places.tolist() == again.places.tolist() != other.places.tolist()
    assert sorted(first.stratum) != first.stratum.tolist()  # the order tells nothing


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.integers(0, 3000))
def test_rows_are_allocated_in_proportion_with_a_least(sizes, more):
    wanted = LEAST * len(sizes) + more
    taken = allocation(sizes, wanted)
    assert sum(taken) == min(wanted, sum(sizes))
    assert all(min(LEAST, size) <= n <= size for n, size in zip(taken, sizes, strict=True))
    shares = sorted((size, n) for size, n in zip(sizes, taken, strict=True))
    assert all(a[1] <= b[1] + 1 for a, b in pairwise(shares))


def test_samples_that_disagree_are_a_stratum():
    samples = {"row": [0, 0, 1, 1], "lineage": [[0], [1], [0], [1]], "verdict": ["a", "b", "a", "a"]}
    rows = pl.LazyFrame(samples).with_row_index(PLACE)
    names = [json.loads(s.name(blind=False)) for s in strata(rows, by_columns(rows, ["verdict", "disagreement"]))]
    differs = [name["disagreement"]["verdict"] for name in names]
    assert [(name["verdict"], d) for name, d in zip(names, differs, strict=True)] == [
        ("a", False),
        ("a", True),
        ("b", True),
    ]


def test_the_verdict_of_by_is_its_first_column_of_texts_or_of_few_numbers():
    rows = judged()
    assert len(strata(rows, By(None))) == 1
    assert values_of(rows, "points") == ["1", "2", "3", "4", "5"]
    assert values_of(rows, "verdict") == ["no", "yes"]
    assert by_columns(rows, ["points"]).verdict == "points"
    assert by_columns(rows, ["verdict_probability"]).verdict is None


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["verdickt"], "no column 'verdickt'; did you mean verdict?"),
        (["lineage"], "makes no strata"),
        (["verdict", "verdict_probability", "points"], "one column of numbers"),
        (["disagreement"], "name the column of the verdict"),
    ],
)
def test_what_makes_no_strata_is_refused(names, says):
    with pytest.raises(ConfigError) as refused:
        by_columns(judged(), names)
    assert says in str(refused.value)


def test_texts_are_no_verdict_and_a_small_sample_says_what_it_takes():
    rows = judged().with_columns(text=pl.col("row").cast(pl.String))
    with pytest.raises(ConfigError, match="'text' has 250 different values, so it is no verdict"):
        sample_of(rows, By("text", ("text",)), 100, 0)
    with pytest.raises(ConfigError, match=r"--rows 11 is too few for 6 strata of --by.* --rows 12"):
        sample_of(rows, by_columns(rows, ["good", "verdict"]), 11, 0)
    with pytest.raises(ConfigError, match="no rows yet"):
        sample_of(rows.head(0), By(None), 10, 0)
    assert members("north", {}) is None
