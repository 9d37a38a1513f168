"""Ranges around what was measured: of sums over rows of which some were looked at, and of seconds on a machine."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from pipeline.api.forecast import Range

_MACHINE = Range(0.8, 1.0, 1.25)
"""How many times as long a run of the same may take: machines drift, and a run has more threads than a trial."""
_NOISY = 0.15
"""Share of the cores that other work may take without a word of it."""


def mean_of(each: Seq[int] | npt.NDArray[np.int64], *, whole: bool) -> Range:
    """Return the mean of all rows. `each`: values of some; `whole`: they are all. 1.645 standard errors to either side
    hold nine cases of ten."""
    if not len(each):
        return Range.exact(0.0)
    mean = float(np.mean(each))
    doubt = 0.0 if whole else 1.645 * float(np.std(each)) / np.sqrt(len(each))
    return Range(max(mean - doubt, 0.0), mean, mean + doubt)


def total(mean: Range, rows: Range) -> Range:
    """Return the sum over all `rows`, of which nothing may bound the number."""
    high = mean.high * rows.high if mean.high else 0.0
    return Range(mean.low * rows.low, mean.likely * rows.likely, high)


def of_run(seconds: Range, others: float) -> Range:
    """Return what a run may take, by `seconds` that were measured while other work took the share `others` of the
    cores: the more of it there was, the less is known, since it may be gone or be more when the job runs."""
    slower = 1 + others
    return Range(_MACHINE.low * seconds.low / slower, seconds.likely, _MACHINE.high * seconds.high * slower)


def load_notes(others: float) -> list[str]:
    """Return a sentence on other work, where there was much."""
    return [f"other work took {others:.0%} of the cores while this was measured"] if others > _NOISY else []
