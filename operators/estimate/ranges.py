"""Confidence ranges: of sums over rows of which some were measured, and of seconds on a shared machine."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from pipeline.api.forecast import Range

_MACHINE = Range(0.8, 1.0, 1.25)
"""Factors on a run's time, compared with a trial: machines drift, and a run has more threads."""
_NOISY = 0.15
"""Share of the cores that other processes may use without a note."""


def mean_of(each: Seq[int] | npt.NDArray[np.int64], *, whole: bool) -> Range:
    """Return the mean of all rows by the values of some (`each`), or of all if `whole`: a 90 % interval (1.645 standard
    errors to either side)."""
    if not len(each):
        return Range.exact(0.0)
    mean = float(np.mean(each))
    doubt = 0.0 if whole else 1.645 * float(np.std(each)) / np.sqrt(len(each))
    return Range(max(mean - doubt, 0.0), mean, mean + doubt)


def total(mean: Range, rows: Range) -> Range:
    """Return the sum over all `rows`, whose number may be unbounded."""
    high = mean.high * rows.high if mean.high else 0.0
    return Range(mean.low * rows.low, mean.likely * rows.likely, high)


def of_run(seconds: Range, others: float) -> Range:
    """Return the time of a run from `seconds` that were measured while other processes used the share `others` of the
    cores. More load widens the range, since it may stop or grow before the run."""
    slower = 1 + others
    return Range(_MACHINE.low * seconds.low / slower, seconds.likely, _MACHINE.high * seconds.high * slower)


def load_notes(others: float) -> list[str]:
    """Return a note on the load of other processes, if it was high."""
    return [f"other work took {others:.0%} of the cores while this was measured"] if others > _NOISY else []
