"""Cosines that no library decides: the error of a product in float32, and the scale of vectors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.rows.cosines import cosines, margin, scaled


@pytest.mark.parametrize("size", [2, 384, 4096])
def test_a_product_in_float32_errs_by_less_than_the_margin(size):
    """In the worst order that can be made here: one number after the other, all of one sign."""
    rng = np.random.default_rng(size)
    rows = scaled(rng.uniform(0.9, 1, (20, size)).astype(np.float32))
    others = scaled(rng.uniform(0.9, 1, (20, size)).astype(np.float32))
    exact = cosines(rows, others)
    lengths = np.linalg.norm(rows.astype(float), axis=1)
    unit = (others / np.linalg.norm(others.astype(float), axis=1)[:, None]).astype(np.float32)
    one_by_one = np.add.accumulate(unit * rows, axis=1, dtype=np.float32)[:, -1] / lengths
    assert np.abs(one_by_one - exact).max() < margin(size) / 2
    assert 1e-6 < margin(4096) < 1e-3


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=9).filter(any))
def test_a_vector_is_scaled_without_a_change_and_is_its_own_like(vector):
    """By a power of two; only a number that is 2**-126 of the largest loses something."""
    given = np.array([vector], np.float32)
    made = scaled(given)
    ratio = float(np.exp2(np.round(np.log2(np.abs(made.astype(float)).max() / np.abs(given.astype(float)).max()))))
    assert 0.5 <= np.linalg.norm(made.astype(float)) <= 1
    assert np.abs(made - given.astype(float) * ratio).max() <= 2.0**-149
    assert cosines(made, made).tolist() == [1.0]
    assert cosines(made, -made).tolist() == [-1.0]
