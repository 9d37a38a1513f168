"""The mean of all rows by the values of some."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from pipeline.api.forecast import Range

Floats = npt.NDArray[np.float64]


def mean_of(each: Seq[int] | Floats, *, whole: bool, alike: Seq[Hashable] | None = None) -> Range:
    """Return the mean of all rows by the values of some (`each`), or of all if `whole`: a 90 % interval (1.645 standard
    errors to either side). `alike`: values for which this is equal tell no more than one of them."""
    if not len(each):
        return Range.exact(0.0)
    mean = float(np.mean(each))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(alike or range(len(each))))}
    errors = np.bincount([numbers[key] for key in alike or range(len(each))], np.asarray(each) - mean)
    doubt = 0.0 if whole else 1.645 * float(np.sqrt(np.square(errors).sum())) / len(each)
    return Range(max(mean - doubt, 0.0), mean, mean + doubt)
