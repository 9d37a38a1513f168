"""A row's tokens depend on the row alone, however it is scheduled: on the fake decoder, token by token.

To the bit on llama.cpp: tests/operators/llama/test_invariance.py. With drafts: speculative/test_engine.py, with blocks:
block_diffusion/test_engine.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence
from tests.operators.engine.fixtures import GREEDY, WARM, Bench, only, shape
from tests.operators.engine.scheduler.test_prefix_cache import mixed_families, tokens_computed
from tests.operators.engine.test_constrained import KINDS
from tests.operators.engine.test_constrained import params as constrained
from tests.sets import often

pytestmark = [pytest.mark.usefixtures("memory"), pytest.mark.slow("schedules thousands of random queues")]

UNIFIED = {"per_sequence": False, "deterministic": False}
WAYS: dict[str, dict[str, Any]] = {
    "all optimised": {},
    "nothing optimised": {"optimise": only()},
    **{
        name: {"optimise": only(**{name: True})}
        for name in ("prefix_sharing", "sample_sharing", "compaction", "grouped_prefill")
    },
    "unified": UNIFIED,
    "unified, few cells": UNIFIED | {"n_ctx": 300},
    "preempted": {"preempt_every": 1},
    "preempted at times": {"preempt_every": 3},
    "preempted, unified": UNIFIED | {"n_ctx": 300, "admission": "optimistic"},
}


MIXED: dict[str, Any] = {"temperature": 1.3, "top_k": 20, "xtc_probability": 0.5}
PARAMS: dict[str, list[SamplingParams]] = {
    "greedy": [GREEDY],
    "warm": [WARM],
    "constrained": [WARM, *(constrained(kind, **MIXED) for kind in KINDS)],
}


def rows_of(params: str) -> list[Sequence]:
    """Rows of some families, with parameters in turn."""
    kinds = PARAMS[params]
    texts = enumerate(mixed_families())
    return [Sequence(i, text, kinds[i % len(kinds)], seed=1000 + i, max_tokens=40) for i, text in texts]


@cache
def alone(params: str) -> dict[object, list[int]]:
    """The tokens of each row in an engine of its own."""
    return {row.handle: Bench(shape(1)).run([row])[row.handle] for row in rows_of(params)}


@pytest.mark.parametrize("slots", often((1, 2, 5, 7, 16), 5))
@pytest.mark.parametrize("params", often(PARAMS, "warm", "constrained"))
@pytest.mark.parametrize("way", often(WAYS, "all optimised", "unified", "preempted"))
def test_a_row_gets_the_tokens_that_it_gets_alone(slots, params, way):
    rules = dict(WAYS[way])
    sizes = shape(slots, **{key: rules.pop(key) for key in ("per_sequence", "deterministic", "n_ctx") if key in rules})
    bench, rows = Bench(sizes, **rules), rows_of(params)
    assert bench.run([rows[i] for i in np.random.default_rng(slots).permutation(len(rows))]) == alone(params)
    counts, total = bench.scheduler.counts, sum(len(row.prompt) for row in rows)
    if "preempted" not in way and params != "constrained":  # whose forced tokens are computed like prompts
        assert tokens_computed(bench) + counts.shared_tokens <= total
    if way == "all optimised" or (way == "unified" and slots > 1):  # there nothing is kept of a row that has left
        assert counts.shared_tokens > 500
    if way == "nothing optimised":
        assert counts.shared_tokens == 0
    assert counts.preempted == sum(row.placement.preemptions for row in rows)
    assert counts.preempted > 10 or "preempt_every" not in WAYS[way] or slots == 1
