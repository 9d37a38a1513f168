"""What a row keeps for the sampler: its random numbers, and its breakers by their content."""

from __future__ import annotations

import numpy as np
import pytest

from operators.engine.sampling.penalties import Breakers
from operators.engine.sampling.row_state import BLOCK, Uniforms

pytestmark = pytest.mark.slow("draws often enough to see frequencies")


def test_uniforms_depend_on_seed_step_and_draw_alone():
    in_order = Uniforms(7)
    values = [in_order.at(t) for t in range(3 * BLOCK)]
    assert [Uniforms(7).at(t) for t in (0, 5, BLOCK - 1, BLOCK, 2 * BLOCK + 3)] == [
        values[t] for t in (0, 5, BLOCK - 1, BLOCK, 2 * BLOCK + 3)
    ]
    others = [in_order.at(t, draw=1) for t in range(3 * BLOCK)]
    assert in_order.at(5) == values[5]
    assert len(set(values + others)) == 2 * len(values)
    assert Uniforms(8).at(0) != values[0]
    assert 0.4 < np.mean(values) < 0.6
    assert 0.4 < np.mean(others) < 0.6


def test_the_numbers_of_draw_0_are_pinned():
    """Texts that were made with them must come again."""
    pinned = [0.8720734548204873, 0.29536538151378355, 0.26322058601135623]
    assert [Uniforms(7).at(t) for t in (0, 1, 64)] == pinned


def test_breakers_are_told_apart_by_their_content():
    assert repr(Breakers([(1, 2), (3,)])) == repr(Breakers([(3,), (1, 2), (3,)]))
    assert repr(Breakers([(1, 2)])) != repr(Breakers([(1,), (2,)]))
