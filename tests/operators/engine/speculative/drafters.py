"""Drafters for tests: models with random weights never repeat themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np

from operators.engine.backend.fake import FakeModel
from operators.engine.backend.interface import Decoder, Model
from operators.engine.sampling.sampler import Sampler
from operators.engine.strategies.speculative.lookup import Draft, DraftedRow, PromptLookup
from operators.engine.strategies.speculative.strategy import Speculative
from operators.settings.runtime import EngineSettings
from operators.settings.speculative import SpeculativeSettings
from pipeline.api.meter import Clock


class Oracle(PromptLookup):
    """Drafts the true tokens, each with a chance to be changed.

    Args:
        truth: the completions, by the handles of the rows.
        right: chance of a token to stay.
    """

    def __init__(self, truth: Mapping[object, Seq[int]], right: float) -> None:
        super().__init__()
        self._truth = truth
        self._right = right
        self._random = np.random.default_rng(5)

    def drafts(self, rows: Seq[DraftedRow], most: Seq[int]) -> list[Draft]:
        return [self._of(row, count) for row, count in zip(rows, most, strict=True)]

    def _of(self, row: DraftedRow, count: int) -> Draft:
        tokens = self._truth[row.handle][len(row.tokens) : len(row.tokens) + max(count, 0)]
        return Draft([t if self._random.random() < self._right else (t + 1) % 250 for t in tokens], ("own", 3))


def speculative(
    drafter: PromptLookup | None,
    decoder: Decoder,
    sampler: Sampler | None = None,
    clock: Clock = time.perf_counter,
    **values: int | bool,
) -> Speculative:
    """Return the strategy, which drafts by `drafter`."""
    settings = SpeculativeSettings(**values)  # type: ignore[arg-type]
    strategy = Speculative(settings, decoder, FakeModel(), sampler=sampler, clock=clock)
    if drafter is not None:
        strategy._drafter = drafter
    return strategy


def with_model(
    draft: Model, runtime: EngineSettings, decoder: Decoder, sampler: Sampler | None = None, **values: int | bool
) -> tuple[Speculative, Callable[[], None]]:
    """Return the strategy with drafts by `draft`, and a function that gives the context of that back."""
    own, give_back = draft.lease(replace(runtime, max_sequence_tokens=decoder.shape.max_sequence_tokens))
    settings = SpeculativeSettings(**values)  # type: ignore[arg-type]
    return Speculative(settings, decoder, draft, (own, draft), sampler), give_back
