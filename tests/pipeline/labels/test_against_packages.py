"""Intervals, kappa, alpha and corrected rates beside the packages that define them, over random labels.

Skipped without them: they are no dependencies. `pip install -e '.[judges]'` has them, or an extra environment of the
same version of Python that takes everything else from the project's:

    python -m venv extra
    extra/bin/pip install 'scikit-learn<2' 'statsmodels<0.16' 'krippendorff<0.10' 'ppi-python<0.3'
    export PYTHONPATH=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    extra/bin/python -m pytest -W default -m laws tests/pipeline/labels/test_against_packages.py
"""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.api.intervals import mcnemar, wilson
from pipeline.labels.agreement import Level, cohen_kappa, krippendorff_alpha
from pipeline.labels.rates import Sampled, corrected_rate

REASON = "needs the extra `judges`: the docstring of this module has the commands"
metrics = pytest.importorskip("sklearn.metrics", reason=REASON)
proportion = pytest.importorskip("statsmodels.stats.proportion", reason=REASON)
tables = pytest.importorskip("statsmodels.stats.contingency_tables", reason=REASON)
krippendorff = pytest.importorskip("krippendorff", reason=REASON)
ppi_py = pytest.importorskip("ppi_py", reason=REASON)

pytestmark = pytest.mark.laws
NEAR = 1e-9
LEVELS: tuple[Level, ...] = ("nominal", "ordinal", "interval")


def test_wilson_is_that_of_statsmodels():
    for rows in (1, 2, 30, 100, 12345):
        for successes in {0, 1, rows // 3, rows - 1, rows}:
            for alpha in (0.05, 0.1, 0.01):
                low, high = proportion.proportion_confint(successes, rows, alpha, "wilson")
                assert wilson(successes, rows, 1 - alpha)[1:] == pytest.approx((low, high), abs=NEAR)


def test_mcnemar_is_that_of_statsmodels():
    for a, b in ((0, 0), (0, 1), (5, 12), (12, 5), (40, 41), (100, 300)):
        expected = tables.mcnemar([[7, a], [b, 3]], exact=True).pvalue if a + b else 1.0
        assert mcnemar(a, b) == pytest.approx(expected, abs=NEAR)


def test_kappa_is_that_of_scikit_learn():
    random = np.random.default_rng(1)
    for _ in range(100):
        first, second = random.choice(["yes", "no", "maybe", "7"], (2, random.integers(5, 40)), p=[0.5, 0.3, 0.1, 0.1])
        weights = random.random(len(first)) * 10
        pairs = list(zip(first.tolist(), second.tolist(), strict=True))
        if len({*first, *second}) > 1:
            assert cohen_kappa(pairs) == pytest.approx(metrics.cohen_kappa_score(first, second), abs=NEAR)
            weighted = metrics.cohen_kappa_score(first, second, sample_weight=weights)
            assert cohen_kappa(pairs, weights.tolist()) == pytest.approx(weighted, abs=NEAR)


@pytest.mark.parametrize("level", LEVELS)
def test_alpha_is_that_of_krippendorff(level):
    random, compared = np.random.default_rng(2), 0
    for _ in range(100):
        labels = random.choice([-1.5, 0, 1, 2, 10, np.nan], (random.integers(2, 6), random.integers(3, 30)))
        units = [[None if np.isnan(v) else repr(float(v)) for v in unit] for unit in labels.T]
        ours = krippendorff_alpha(units, level)
        if ours is not None:
            theirs = krippendorff.alpha(reliability_data=labels, level_of_measurement=level)
            assert ours == pytest.approx(theirs, abs=NEAR)
            compared += 1
    assert compared > 90


def test_the_corrected_rate_is_that_of_ppi_python():
    """Of many labels, where one label more or less for tuning and what Wilson adds to a normal interval are small."""
    random = np.random.default_rng(3)
    of_all = random.random(200_000)
    labelled = random.random(4_000)
    positive = random.random(4_000) < labelled**2
    ours = corrected_rate(
        Sampled(np.zeros(4_000, np.int64), np.array([10**7])), positive, labelled, of_all[None].mean(1)
    )
    low, high = ppi_py.ppi_mean_ci(positive.astype(float), labelled, of_all, alpha=0.05)
    estimate = ppi_py.ppi_mean_pointestimate(positive.astype(float), labelled, of_all)
    assert ours.interval == pytest.approx((estimate[0], low[0], high[0]), abs=1e-3)
