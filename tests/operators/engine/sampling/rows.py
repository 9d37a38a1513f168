"""A row that the sampler draws for."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence


def row(number: int, params: SamplingParams, prompt: Seq[int] = (1, 2, 3, 2), tokens: Seq[int] = ()) -> Sequence:
    made = Sequence(number, np.array(prompt, np.int32), params, seed=number, max_tokens=10**6)
    made.tokens = list(tokens)
    return made
