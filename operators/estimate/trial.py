"""Run some rows of a job on its engine, call by call in this thread, until time is up; the mean of all by some."""

from __future__ import annotations

import math
from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from operators.engine.loop.engine import Engine
from operators.engine.sequence import Sequence, State
from pipeline.api.forecast import Range
from pipeline.api.meter import StageMeter

Floats = npt.NDArray[np.float64]
MOST_ROWS = 256
"""Most rows to begin: their lengths are a large enough sample."""
_FULL = 0.75
"""Steps with at least this share of the rows of the fullest step count as full."""


class CallTime(NamedTuple):
    """The time of a call: the rows that decoded in it, its tokens, and its seconds."""

    rows: int
    tokens: float
    seconds: float


@dataclass
class Trial:
    """Runs rows on an engine whose thread is not started, and keeps the times of its calls.

    Attributes:
        rows: those that got a token and did not fail.
        failed: those that did, as rows do whose image is damaged.
        early: those whose lengths count: all if all ended, else those that were begun in the first half of the time,
            since nearly all others are cut short.
        prompts: calls that read prompts; their tokens are those of the prompts, their seconds without `encode_s`.
        encode_s, cells: seconds in which images were encoded, and the cells of the calls for which they were.
        steps: calls in which rows decoded and no prompt was read; their tokens are those that were drawn.
    """

    engine: Engine
    rows: list[Sequence] = field(default_factory=list)
    failed: list[Sequence] = field(default_factory=list)
    early: list[Sequence] = field(default_factory=list)
    prompts: list[CallTime] = field(default_factory=list)
    steps: list[CallTime] = field(default_factory=list)
    encode_s: float = 0.0
    cells: float = 0.0

    def run(self, rows: Seq[Sequence], seconds: float) -> None:
        """Submit some of `rows`, and make calls until they are done or time is up: at least one that reads a prompt."""
        engine, loop = self.engine, self.engine.loop
        scheduler, slots = loop.scheduler, loop.decoder.shape.slots
        began = engine.now()
        half = began + seconds / 2
        rows = rows[: max(MOST_ROWS, 2 * slots)]
        meter = StageMeter("trial")
        client = engine.connect(meter, 1, len(rows), lambda: None, steps=False)
        pending = iter(rows)
        while engine.now() < began + seconds or not self.prompts:
            # No more at a time than there are slots: the queue would put waiting rows with a cached prefix first.
            client.submit(islice(pending, max(slots - len(scheduler.slots) - client.waiting, 0)))
            if not scheduler.runnable:
                break
            self._step(meter)
            if not self.steps and engine.now() > half:
                # All prompts are read before any row decodes; continue with the rows whose prompts were read.
                pending = iter(())
                scheduler.abandon(lambda row: row.state is State.PREFILL)
        ended = all(row.ended for row in rows)
        self.rows = [row for row in rows if (row.tokens or row.finish_reason is not None) and row.error is None]
        self.failed = [row for row in rows if row.error is not None]
        self.early = [row for row in self.rows if ended or row.times.queued <= half]
        scheduler.abandon(lambda row: True)
        scheduler.cache.forget()
        engine.drop(client)

    def _step(self, meter: StageMeter) -> None:
        engine, loop = self.engine, self.engine.loop
        totals, tokens, began = engine.totals(), meter.tokens_out, engine.now()
        loop.step()
        seconds, after = engine.now() - began, engine.totals()
        prompt = after["prefill_tokens"] - totals["prefill_tokens"]
        rows = int(after["slot_steps_used"] - totals["slot_steps_used"])
        if encode_s := after["encode_s"] - totals["encode_s"]:
            self.encode_s += encode_s
            self.cells += prompt
            seconds -= encode_s
        if prompt:
            # In a mixed batch, decoding rows take their share of the call.
            decoded = rows * max(loop.decoder.shape.block, 1)
            self.prompts.append(CallTime(rows, prompt, seconds * prompt / (prompt + decoded)))
        elif rows:
            self.steps.append(CallTime(rows, meter.tokens_out - tokens, seconds))

    @property
    def cell_s(self) -> float:
        """Seconds per cell of an image, in which it is encoded."""
        return self.encode_s / self.cells if self.cells else 0.0

    @property
    def prompt_token_s(self) -> float:
        """Seconds per prompt token. The first call is left out if possible: it may read weights from disk."""
        calls = self.prompts[1:] or self.prompts
        return sum(call.seconds for call in calls) / sum(call.tokens for call in calls) if calls else 0.0

    def token_s(self, full: int, depth: float) -> Range | None:
        """Return the seconds per token in steps of `full` rows, `depth` tokens deep on average; None if they are not
        known.

        The job's steps may have more rows than those of a trial that was cut short: each row then takes as long at
        most, and the whole step at least. They may be deeper: a step then takes longer, but no more than in proportion.
        """
        most = max((step.rows for step in self.steps), default=0)
        steps = [step for step in self.steps if step.rows >= _FULL * most]
        if tokens := sum(step.tokens for step in steps):
            measured = sum(step.seconds for step in steps) / tokens
            lengths = np.array([len(row.tokens) for row in self.rows], np.float64)
            rows = sum(step.rows for step in steps) / len(steps)
            return _between(measured * min(rows / full, 1.0), measured * max(depth / depth_of(self.rows, lengths), 1.0))
        if not self.prompts or self.engine.loop.decoder.shape.block:
            return None
        # A step of as many rows as a call had prompt tokens would take about as long as that call.
        call = self.prompts[-1]
        return _between(call.seconds / max(call.tokens, full), call.seconds / min(call.tokens, full))


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


def depth_of(rows: Seq[Sequence], lengths: Floats) -> float:
    """Return the tokens before a decode step, averaged over the tokens of completions of these `lengths`."""
    behind = np.array([len(row.prompt) for row in rows]) + lengths / 2
    return max(float((lengths * behind).sum()) / max(float(lengths.sum()), 1.0), 1.0)


def _between(low: float, high: float) -> Range:
    return Range(low, math.sqrt(low * high), high)
