"""Kappa and alpha: values that scikit-learn and krippendorff gave, and what they are by definition.

test_against_packages.py compares many with the packages.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.api.errors import ConfigError
from pipeline.labels.agreement import Level, cohen_kappa, krippendorff_alpha

FIRST = ["yes", "yes", "no", "maybe", "no", "yes", "no", "maybe", "yes", "no"]
SECOND = ["yes", "no", "no", "maybe", "yes", "yes", "no", "no", "yes", "no"]
WEIGHTS = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]
# Twelve rows, three reviewers, 0: no label.
ROWS = [(1, 1, 0), (2, 2, 3), (3, 3, 3), (3, 3, 3), (2, 0, 2), (1, 2, 3), (4, 4, 4), (1, 1, 2), (2, 2, 2), (0, 5, 5)]
UNITS = [[str(label) if label else None for label in row] for row in [*ROWS, (0, 0, 1), (3, 0, 0)]]
# krippendorff 0.9.0: alpha(reliability_data=..., level_of_measurement=...)
ALPHA: dict[Level, float] = {
    "nominal": 0.6666666666666667,
    "ordinal": 0.8091140040598525,
    "interval": 0.8611111111111112,
}


def test_kappa_is_that_of_scikit_learn():
    """1.9.1: cohen_kappa_score(FIRST, SECOND, sample_weight=WEIGHTS)."""
    pairs = list(zip(FIRST, SECOND, strict=True))
    assert cohen_kappa(pairs) == pytest.approx(0.5161290322580645, abs=1e-12)
    assert cohen_kappa(pairs, WEIGHTS) == pytest.approx(0.4633273703041145, abs=1e-12)


@pytest.mark.parametrize("level", ALPHA)
def test_alpha_is_that_of_krippendorff(level):
    assert krippendorff_alpha(UNITS, level) == pytest.approx(ALPHA[level], abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.sampled_from(["1", "2", "10", None]), max_size=4), max_size=12), st.randoms())
def test_no_order_changes_agreement_and_full_agreement_is_one(units, random):
    mixed = [random.sample(unit, len(unit)) for unit in random.sample(units, len(units))]
    for level in ALPHA:
        value = krippendorff_alpha(units, level)
        assert krippendorff_alpha(mixed, level) == (None if value is None else pytest.approx(value, abs=1e-9))
        assert value is None or value <= 1 + 1e-12
    same = [[unit[0]] * 3 for unit in units if unit and unit[0] is not None]
    assert krippendorff_alpha(same) in (None, 1.0)
    pairs = [(str(unit[0]), str(unit[1])) for unit in units if len(unit) > 1]
    turned = cohen_kappa([(b, a) for a, b in reversed(pairs)])
    assert turned == (None if turned is None else pytest.approx(cohen_kappa(pairs), abs=1e-9))


def test_what_is_undefined_is_none():
    assert cohen_kappa([]) is cohen_kappa([("yes", "yes")] * 3) is cohen_kappa([("yes", "no")], [0.0]) is None
    assert krippendorff_alpha([]) is krippendorff_alpha([["a", None], ["b"]]) is None
    assert krippendorff_alpha([["a", "a"], ["a", "a", None]]) is None
    assert cohen_kappa([("yes", "no")] * 3) == 0.0


def test_words_have_no_ranks():
    with pytest.raises(ConfigError, match="'good' is no number, so it has no place in ordinal agreement"):
        krippendorff_alpha([["1", "good"]], "ordinal")
