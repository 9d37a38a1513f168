"""Speculative decoding on the fake decoder: the tokens of decode=autoregressive, whatever is drafted."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import pytest

from operators.engine.backend.fake import END_ID, FakeModel
from operators.engine.loop.engine import Engine
from operators.engine.loop.worker import Worker
from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence
from operators.engine.strategies.speculative.lookup import Draft, DraftedRow, Lookup
from operators.engine.strategies.speculative.strategy import Speculative
from operators.settings.speculative import SpeculativeSettings
from pipeline.api.meter import StageMeter
from tests.operators.engine.fixtures import (
    GREEDY,
    WARM,
    Bench,
    prompts,
    sequences,
    shape,
)

PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "dry_multiplier": 0.8, "dry_allowed_length": 1}
STOPS = frozenset({END_ID})
SAMPLING = {
    "greedy": GREEDY,
    "sampled": WARM,
    "penalties": SamplingParams(temperature=0.8, stop_ids=STOPS, **PENALTIES),  # type: ignore[arg-type]
    "logprobs": SamplingParams(temperature=1.2, top_p=0.9, logprobs=2, stop_ids=STOPS, min_tokens=4, end_ids=STOPS),
    "mirostat": SamplingParams(temperature=1.0, mirostat=2, stop_ids=STOPS),
    "no end": SamplingParams(temperature=1.0),
}


class Oracle(Lookup):
    """Drafts the true tokens, some of them changed: by the row, its length and chance."""

    def __init__(self, truth: dict[object, list[int]], right: float) -> None:
        super().__init__()
        self._truth = truth
        self._right = right
        self._random = np.random.default_rng(5)

    def drafts(self, rows: Seq[DraftedRow], most: Seq[int]) -> list[Draft]:
        return [self._of(row, count) for row, count in zip(rows, most, strict=True)]

    def _of(self, row: DraftedRow, count: int) -> Draft:
        tokens = list(self._truth[row.handle][len(row.tokens) : len(row.tokens) + max(count, 0)])
        return Draft([t if self._random.random() < self._right else (t + 1) % 250 for t in tokens], 3)


class Drafting(Bench):
    """A bench whose rows are completed by drafts."""

    def __init__(self, sizes: Any, drafter: Lookup | None = None, **settings: Any) -> None:
        values = {key: settings.pop(key) for key in ("adaptive", "draft_tokens") if key in settings}
        super().__init__(sizes, **settings)
        self.strategy = Speculative(SpeculativeSettings(**values))
        if drafter is not None:
            self.strategy._drafter = drafter
        self.strategy.bind(self.decoder, FakeModel())
        meters = (StageMeter("decode"), StageMeter("sample"))
        self.worker = Worker(self.strategy, self.queue, self.settings, meters)
        self.scheduler = self.worker.scheduler
        self.engine = Engine([self.worker], self.queue, self.steps)

    @property
    def accepted(self) -> float:
        return self.engine.totals()["accepted_tokens"]


def drafted(texts: Seq[np.ndarray], params: SamplingParams, max_tokens: int = 30) -> list[Sequence]:
    return [DraftedRow(i, text, params, seed=1000 + i, max_tokens=max_tokens) for i, text in enumerate(texts)]


def notes(rows: Seq[Sequence]) -> dict[object, tuple[Any, ...]]:
    """Everything that a completion is."""
    return {row.handle: (row.tokens, row.finish_reason, row.error, row.sampling.scores, row.dropped) for row in rows}


@pytest.mark.parametrize("params", SAMPLING.values(), ids=SAMPLING.keys())
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_rows_are_those_of_autoregressive_whatever_is_drafted(params, right):
    texts = prompts(24)
    expected = sequences(texts, params)
    truth = Bench(shape(4)).run(expected)
    for slots in (1, 4, 16):
        for values in ({"draft_tokens": 3, "adaptive": False}, {"draft_tokens": 7, "adaptive": False}, {}):
            bench, rows = Drafting(shape(slots), Oracle(truth, right), **values), drafted(texts, params)
            bench.run([rows[i] for i in np.random.default_rng(slots).permutation(24)])
            assert notes(rows) == notes(expected), (slots, values)
            if right and not values.get("adaptive", True):
                assert bench.accepted > 0
            if right == 1 and values == {"draft_tokens": 7, "adaptive": False} and slots == 1:
                assert bench.accepted > 0.7 * sum(map(len, truth.values()))
