"""Confidence ranges: of sums over rows of which some were measured, of seconds on a shared machine, and of the lengths
of completions from some that were begun, many of which are cut off before they end.

A completion that was cut off after t tokens says only that it is longer than t. The mean of those that ended would be
too short, since long ones are cut off more often. The Kaplan-Meier estimator (Kaplan and Meier 1958) gives the share
that is longer than each length, from those still observed at it. Beyond the longest observed one, completions are
assumed to end at a constant rate until the limit: that of the tokens in the later half of the observation, with half an
end more, since there may have been none.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from operators.tuning.machine_load import NOISY
from pipeline.api.forecast import Range

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_REPLICATES = 300
_MACHINE = Range(0.8, 1.0, 1.25)
"""Factors on a run's time, compared with a trial: machines drift, and a run has more threads."""


def mean_of(each: Seq[int] | Ints, *, whole: bool) -> Range:
    """Return the mean of all rows by the values of some (`each`), or of all if `whole`: a 90 % interval (1.645 standard
    errors to either side)."""
    if not len(each):
        return Range.exact(0.0)
    mean = float(np.mean(each))
    doubt = 0.0 if whole else 1.645 * float(np.std(each)) / np.sqrt(len(each))
    return Range(max(mean - doubt, 0.0), mean, mean + doubt)


def total(mean: Range, rows: Range) -> Range:
    """Return the sum over all `rows`, whose number may be unbounded."""
    return Range(mean.low * rows.low, mean.likely * rows.likely, mean.high * rows.high if mean.high else 0.0)


def of_run(seconds: Range, others: float) -> Range:
    """Return the time of a run from `seconds` that were measured while other processes used the share `others` of the
    cores. More load widens the range, since it may stop or grow before the run."""
    slower = 1 + others
    return Range(_MACHINE.low * seconds.low / slower, seconds.likely, _MACHINE.high * seconds.high * slower)


def load_notes(others: float) -> list[str]:
    return [f"other work took {others:.0%} of the cores while this was measured"] if others > NOISY else []


def survival(tokens: Ints, ended: npt.NDArray[np.bool_], most: int, more_ends: float = 0.5) -> Floats:
    """Return the share of completions with more than t tokens, for t from 0: float64 [most].

    Args:
        tokens, ended: of each completion that was begun, of at least one: its tokens, and whether it ended with them.
        most: tokens at which all are cut.
        more_ends: added to the ends in the later half.
    """
    tokens = np.minimum(tokens, most)
    last, middle = int(tokens.max()), int(tokens.max()) // 2
    watched = np.bincount(tokens, minlength=last + 1)[::-1].cumsum()[::-1]
    ends = np.bincount(tokens[ended], minlength=last + 1)
    seen = np.cumprod(1 - ends / watched)
    late = np.count_nonzero(ended & (tokens > middle)) + more_ends
    rate = min(late / max(np.maximum(tokens - middle, 0).sum(), 1), 1.0)
    beyond = seen[-1] * (1 - rate) ** np.arange(1, most - last)
    return np.concatenate([seen, beyond])[:most]


def mean_length(tokens: Ints, ended: npt.NDArray[np.bool_], prompts: Seq[Hashable], most: int) -> Range:
    """Return the mean length and its confidence interval by the bootstrap, with one end more or none in the later half.
    Several completions of one of `prompts` are drawn together, since they are alike."""
    random = np.random.default_rng(0)
    rows_of: dict[Hashable, list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows_of.setdefault(prompt, []).append(row)
    groups = list(rows_of.values())
    means = []
    for _ in range(_REPLICATES):
        drawn = np.concatenate([groups[i] for i in random.integers(len(groups), size=len(groups))])
        means.append(survival(tokens[drawn], ended[drawn], most, float(random.integers(2))).sum())
    low, high = np.quantile(means, [0.05, 0.95]).tolist()
    likely = float(survival(tokens, ended, most).sum())
    return Range(min(low, likely), likely, max(high, likely))


def draw(share: Floats, count: int) -> Ints:
    """Draw `count` lengths, int64, from the distribution that `survival` returns."""
    return np.searchsorted(-share, -np.random.default_rng(0).random(count))
