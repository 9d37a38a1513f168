"""Which tokens are committed, and how sure the model is of them."""

from __future__ import annotations

import numpy as np
import pytest

from operators.engine.strategies.block_diffusion.denoise import no_lone_output
from operators.engine.strategies.block_diffusion.remasking import committed, confidences_of
from operators.settings.block_diffusion import BlockDiffusionSettings

SURE = [0.2, 0.9, 0.5, 0.9, 0.1, 0.86]


def of(remasking: str, length: int = 8, steps: int | None = None, **thresholds: float) -> BlockDiffusionSettings:
    return BlockDiffusionSettings(
        block_length=length,
        denoising_steps=steps,
        remasking=remasking,
        **thresholds,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("length", "steps", "counts"),
    [
        (8, None, [1] * 8),
        (8, 8, [1] * 8),
        (8, 99, [1] * 8),
        (8, 3, [3, 3, 2]),
        (8, 1, [8]),
        (4, 3, [2, 1, 1]),
        (1, 5, [1]),
    ],
)
def test_the_schedule_is_even_and_makes_the_whole_block(length, steps, counts):
    settings = of("sequential", length, steps)
    assert [settings.committed(step) for step in range(settings.steps)] == counts
    assert sum(counts) == length


def test_static_commits_the_most_confident_of_equal_ones_the_first():
    assert committed(of("low_confidence_static", steps=8), 0, SURE, None) == [1]
    assert committed(of("low_confidence_static", steps=3), 0, SURE, None) == [1, 3, 5]
    assert committed(of("low_confidence_static", steps=1), 0, SURE, None) == [1, 3, 5, 2, 0, 4], (
        "no more than there are"
    )


def test_dynamic_commits_all_above_the_threshold_if_these_are_enough():
    assert committed(of("low_confidence_dynamic", steps=8), 0, SURE, None) == [1, 3, 5]
    assert committed(of("low_confidence_dynamic", steps=8, confidence_threshold=0.9), 0, SURE, None) == [1], "not equal"
    assert committed(of("low_confidence_dynamic", steps=2), 0, SURE, None) == [1, 3, 5, 2]


def test_sequential_commits_the_leftmost():
    assert committed(of("sequential", steps=3), 0, SURE, None) == [0, 1, 2]
    assert committed(of("sequential", steps=3), 2, SURE, None) == [0, 1]


@pytest.mark.parametrize(
    ("most", "chosen"), [(0.0, [2]), (0.05, [2]), (0.1, [2]), (0.35, [2, 0]), (0.61, [2, 0, 3]), (9, None)]
)
def test_entropy_bounded_commits_as_long_as_the_sum_stays_below_the_bound(most, chosen):
    entropies = [0.2, 2.0, 0.1, 0.3]
    made = committed(of("entropy_bounded", eb_threshold=most), 0, SURE[:4], entropies)
    assert made == ([2, 0, 3, 1] if chosen is None else chosen)


@pytest.mark.parametrize("n_vocab", [7, 384, 70_000])
def test_confidences_are_those_of_float64(n_vocab):
    random = np.random.default_rng(1)
    logits = random.normal(0, 4, (9, n_vocab)).astype(np.float32)
    logits[:, 3] = -np.inf
    temperatures = np.array([0.5, 1, 2] * 3, np.float32)
    found = confidences_of(logits, temperatures, entropies=True)
    z = logits.astype(np.float64) / temperatures[:, None]
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropies = -np.where(p > 0, p * np.log(p), 0).sum(axis=1)
    assert found.tops.tolist() == p.argmax(axis=1).tolist()
    assert found.entropies == pytest.approx(entropies, rel=1e-4)
    for token in (0, 5):
        each = [found.probability(i, float(logits[i, token]), float(temperatures[i])) for i in range(9)]
        assert each == pytest.approx(p[:, token], rel=1e-5)


def test_confidences_depend_on_their_own_logits_alone():
    random = np.random.default_rng(2)
    logits = random.normal(0, 3, (40, 5000)).astype(np.float32)
    ones = np.ones(40, np.float32)
    whole = confidences_of(logits, ones, entropies=True)
    for at in (0, 17, 39):
        alone = confidences_of(logits[at : at + 1], ones[:1], entropies=True)
        assert whole.sums[at].tobytes() == alone.sums[0].tobytes()
        assert whole.entropies is not None
        assert alone.entropies is not None
        assert whole.entropies[at].tobytes() == alone.entropies[0].tobytes()


@pytest.mark.parametrize(
    ("slots", "asked", "counts"),
    [
        ([0], [1], [2]),
        ([0, 1], [1, 0], [2, 0]),
        ([0, 1], [1, 1], [1, 1]),
        ([0, 2], [1, 1], [2, 2]),
        ([0, 1, 3, 5, 6], [1, 2, 1, 0, 1], [1, 2, 2, 1, 1]),
        ([4, 5], [0, 0], [0, 0]),
        ([4], [3], [3]),
    ],
)
def test_no_run_of_slots_has_a_single_output(slots, asked, counts):
    outputs = np.array([[False] * (3 - count) + [True] * count for count in asked])
    wanted = outputs.copy()
    no_lone_output(outputs, slots)
    assert outputs.sum(axis=1).tolist() == counts
    assert (outputs | ~wanted).all(), "what was wanted stays"
