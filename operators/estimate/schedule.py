"""What a scheduler makes of many rows, without computing them: steps until all are done, and prompt tokens shared."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from operators.engine.backend.fake import FakeDecoder, FakeModel
from operators.engine.backend.interface import DecoderShape, Logits
from operators.engine.loop.engine import Engine
from operators.engine.loop.worker import Worker
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.sampler import Sampler
from operators.engine.sampling.step import SampledRow
from operators.engine.sequence import Sequence
from operators.engine.strategies.autoregressive import Autoregressive
from operators.settings import DecodeSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.meter import StageMeter

MOST_ROWS = 400


def steps_until_done(lengths: Iterable[int], slots: int) -> int:
    """Decode steps in which rows of these `lengths` (steps each), taken in order, are done in so many slots."""
    ends = [0] * slots
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def computed_share(rows: Seq[Sequence], shape: DecoderShape, settings: EngineSettings) -> float:
    """The share of the rows' prompt tokens that is computed and not taken from another row. Found by the scheduler
    itself, over a decoder that computes nothing: each row is drawn one token."""
    rows = rows[:MOST_ROWS]
    total = sum(len(row.prompt) for row in rows)
    strategy = Autoregressive(DecodeSettings(), _AnyToken()).bind(FakeDecoder(shape), FakeModel())
    queue = strategy.queue(settings)
    meters = (StageMeter("decode"), StageMeter("sample"))
    worker = Worker(strategy, queue, settings, meters)
    engine = Engine([worker], queue, _NoTable())
    client = engine.connect(StageMeter("schedule"), 1, len(rows), lambda: None, steps=False)
    client.submit([Sequence(row.handle, row.prompt, SamplingParams(), row.seed, 1) for row in rows])
    client.end()
    while worker.scheduler.runnable:
        worker.step()
    return 1 - worker.scheduler.counts.shared_tokens / total if total else 1.0


class _AnyToken(Sampler):
    """Draws the same token for every row."""

    def draw(self, logits: Logits, rows: Seq[SampledRow], places: Seq[int] | None = None) -> list[int | None]:
        """Token 0 for each row."""
        return [0] * len(rows if places is None else places)


class _NoTable:
    """A metrics table that keeps nothing."""

    def append(self, *values: object) -> None:
        """See pipeline.api.protocols.Table."""

    def extend(self, columns: Seq[Seq[object]]) -> None:
        """See pipeline.api.protocols.Table."""
