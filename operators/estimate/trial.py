"""Some rows of a job on its own engine, call by call in this thread, until the time is up."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np

from operators.engine.backend.interface import TokenIds
from operators.engine.loop.engine import Engine
from operators.engine.loop.worker import Worker
from operators.engine.sequence import FinishReason, Sequence
from operators.estimate.pace import StepTime
from pipeline.api.meter import StageMeter

PROBE_TOKENS = 64
MOST_ROWS = 128
"""So many are begun at most: their lengths tell enough of all lengths."""
_SHARE = 0.5
"""Of the time, for the prompts of the rows that are begun together."""


@dataclass
class Seen:
    """What came of a trial.

    Args:
        rows: that were begun and did not fail.
        steps: calls in which rows decoded and no prompt was read.
        prompt_tokens, prompt_s: computed in calls that read prompts, and the seconds of these.
        row_steps: rows of all calls in which rows decoded, summed up.
        cut_prompts: prompts were too long to be read in the time, and their first tokens stand for them.
    """

    rows: list[Sequence] = field(default_factory=list)
    steps: list[StepTime] = field(default_factory=list)
    prompt_tokens: float = 0.0
    prompt_s: float = 0.0
    row_steps: float = 0.0
    cut_prompts: bool = False

    @property
    def prompt_token_s(self) -> float:
        """Seconds a prompt token."""
        return self.prompt_s / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def constrained(self) -> bool:
        """Whether tokens may have been known without a step."""
        return any(row.params.constraint is not None for row in self.rows)

    @property
    def tokens(self) -> int:
        """That were made."""
        return sum(len(row.tokens) for row in self.rows)


class Trial:
    """Runs rows on `engine`, whose threads do not run.

    Args:
        worker: of its first context, on which all is computed.
    """

    def __init__(self, engine: Engine, worker: Worker) -> None:
        self._engine = engine
        self._worker = worker

    def run(self, rows: Seq[Sequence], seconds: float) -> Seen:
        """Begin with as many of `rows` as there is time to read, and go on for about so many seconds.

        Not one call is begun after that, and none of prompts that would take longer than what is left.
        """
        until = self._engine.now() + seconds
        token_s = self._probe(rows)
        left = max(until - self._engine.now(), 0.0)
        rows = rows[: max(MOST_ROWS, 2 * self._worker.decoder.shape.slots)]
        fits = np.cumsum([len(row.prompt) for row in rows]) * token_s <= _SHARE * left
        begun = list(rows[: int(fits.sum())])
        seen = Seen()
        if not begun:
            seen.cut_prompts = True
            length = int(min(max(_SHARE * left / token_s, 2), len(rows[0].prompt)))
            begun = [self._short(rows[0], rows[0].prompt[:length])]
        self._complete(begun, until, seen, least=2 if seen.cut_prompts else 1)
        return seen

    def _probe(self, rows: Seq[Sequence]) -> float:
        """Seconds that a prompt token takes, from a few. The first call may read the weights from the disk."""
        token_s = 0.0
        for row in [rows[0], rows[-1]]:
            short = self._short(row, row.prompt[:PROBE_TOKENS][::-1].copy())  # no prompt begins like it
            began = self._engine.now()
            self._complete([short], began, Seen())
            token_s = (self._engine.now() - began) / len(short.prompt)
            if self._engine.now() - began > 1.0:
                break
        return token_s

    def _short(self, row: Sequence, prompt: TokenIds) -> Sequence:
        """A row like `row` with another prompt."""
        make = self._worker.strategy.sequence_type()
        return make(row.handle, prompt, row.params, row.seed, row.max_tokens, None)

    def _complete(self, rows: Seq[Sequence], until: float, seen: Seen, least: int = 1) -> None:
        """Make calls until all rows are done or it is `until`; but `least` of them."""
        client = self._engine.connect(StageMeter("trial"), 1, len(rows), lambda: None, steps=False)
        client.submit(rows)
        client.end()
        scheduler = self._worker.scheduler
        while scheduler.runnable and (least > 0 or self._engine.now() < until):
            self._step(seen)
            least -= 1
        seen.rows += [row for row in rows if (row.tokens or row.finish_reason is not None) and row.error is None]
        scheduler.abandon(lambda row: True)
        self._engine.drop(client)

    def _step(self, seen: Seen) -> None:
        before, began = self._engine.totals(), self._engine.now()
        self._worker.step()
        seconds, after = self._engine.now() - began, self._engine.totals()
        prompt = after["prefill_tokens"] - before["prefill_tokens"]
        rows = int(after["slot_steps_used"] - before["slot_steps_used"])
        seen.row_steps += rows
        if prompt:
            # Where prompts ride along with rows that decode, these have their share of the call.
            decoded = rows * max(self._worker.decoder.shape.block, 1)
            seen.prompt_tokens += prompt
            seen.prompt_s += seconds * prompt / (prompt + decoded)
        elif rows:
            depths = [row.slot.num_cached for row in self._worker.scheduler.slots.rows()]
            seen.steps.append(StepTime(rows, float(np.mean(depths)) if depths else 0.0, seconds))


def ended_by_itself(row: Sequence) -> bool:
    """Whether the row is complete, and not because it was as long as it may be."""
    return row.finish_reason is not None and row.finish_reason is not FinishReason.LENGTH
