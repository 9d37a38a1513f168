"""Run some rows of a job on its engine, call by call in this thread, until time is up."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from operators.engine.backend.interface import Decoder
from operators.engine.loop.engine import Engine
from operators.engine.loop.worker import Worker
from operators.engine.sequence import Sequence, State
from operators.settings.runtime import EngineSettings
from pipeline.api.meter import StageMeter

MOST_ROWS = 256
"""Most rows to begin: their lengths are a large enough sample."""
_PROMPTS_SHARE = 0.5
"""Share of the time for the prompts before the first decode step."""
_FULL = 0.75
"""Steps with at least this share of the rows of the fullest step count as full."""


@dataclass(frozen=True)
class Device:
    """A job's engine, whose thread is not started."""

    engine: Engine
    settings: EngineSettings

    @property
    def worker(self) -> Worker:
        return self.engine.worker

    @property
    def decoder(self) -> Decoder:
        return self.worker.decoder


class CallTime(NamedTuple):
    """The time of a call: the rows that decoded in it, its tokens, and its seconds."""

    rows: int
    tokens: float
    seconds: float


@dataclass
class Trial:
    """Runs rows on `device`, and keeps the times of its calls.

    Attributes:
        rows: those that got a token and did not fail.
        complete: whether all rows have ended.
        prompts: calls that read prompts; their tokens are those of the prompts.
        steps: calls in which rows decoded and no prompt was read; their tokens are those that were drawn.
    """

    device: Device
    rows: list[Sequence] = field(default_factory=list)
    complete: bool = False
    prompts: list[CallTime] = field(default_factory=list)
    steps: list[CallTime] = field(default_factory=list)

    @property
    def prompt_token_s(self) -> float:
        """Seconds per prompt token. The first call is left out if possible: it may read weights from disk."""
        calls = self.prompts[1:] or self.prompts
        return sum(call.seconds for call in calls) / sum(call.tokens for call in calls) if calls else 0.0

    @property
    def full_steps(self) -> list[CallTime]:
        most = max((step.rows for step in self.steps), default=0)
        return [step for step in self.steps if step.rows >= _FULL * most]

    def run(self, rows: Seq[Sequence], seconds: float) -> None:
        """Submit some of `rows`, and make calls until they are done or time is up."""
        engine, scheduler = self.device.engine, self.device.worker.scheduler
        began = engine.now()
        rows = rows[: max(MOST_ROWS, 2 * self.device.decoder.shape.slots)]
        meter = StageMeter("trial")
        client = engine.connect(meter, 1, len(rows), lambda: None, steps=False)
        pending = iter(rows)
        while engine.now() < began + seconds:
            # No more at a time than there are slots: the queue would put waiting rows with a cached prefix first.
            free = self.device.decoder.shape.slots - len(scheduler.slots) - client.waiting
            client.submit(islice(pending, max(free, 0)))
            if not scheduler.runnable:
                break
            self._step(meter)
            if not self.steps and engine.now() > began + _PROMPTS_SHARE * seconds:
                # All prompts are read before any row decodes; continue with the rows whose prompts were read.
                pending = iter(())
                scheduler.abandon(lambda row: row.state is State.PREFILL)
        self.complete = all(row.finish_reason is not None or row.error is not None for row in rows)
        self.rows = [row for row in rows if (row.tokens or row.finish_reason is not None) and row.error is None]
        scheduler.abandon(lambda row: True)
        scheduler.clear()
        engine.drop(client)

    def _step(self, meter: StageMeter) -> None:
        engine = self.device.engine
        before, tokens, began = engine.totals(), meter.tokens_out, engine.now()
        self.device.worker.step()
        seconds, after = engine.now() - began, engine.totals()
        prompt = after["prefill_tokens"] - before["prefill_tokens"]
        rows = int(after["slot_steps_used"] - before["slot_steps_used"])
        if prompt:
            # In a mixed batch, decoding rows take their share of the call.
            decoded = rows * max(self.device.decoder.shape.block, 1)
            self.prompts.append(CallTime(rows, prompt, seconds * prompt / (prompt + decoded)))
        elif rows:
            self.steps.append(CallTime(rows, meter.tokens_out - tokens, seconds))
