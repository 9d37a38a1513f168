"""Autoregressive: the decode strategy that makes one token per sequence and step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from functools import cached_property
from typing import Any

import numpy as np

from operators.engine.backend.interface import Logits
from operators.engine.scheduler.step_batch import StepBatch
from operators.engine.sequence import Sequence
from operators.engine.strategies.base import Strategy
from operators.engine.strategies.reducing import Reducing


class Autoregressive(Strategy):
    """Token by token."""

    @cached_property
    def _reducing(self) -> Reducing | None:
        """Decides which calls a device reduces; None where it reduces none."""
        return Reducing(self.decoder) if self.decoder.shape.candidates else None

    def fill(self, batch: StepBatch) -> None:
        buffer = self.decoder.batch
        batch.begin(buffer)
        tokens, slots = [row.next_token for row in batch.decoding], [row.slot for row in batch.decoding]
        if batch.dummy is not None:
            place = 0 if _dummy_is_first(batch) else len(slots)
            tokens.insert(place, 0)
            slots.insert(place, batch.dummy)
        if slots:
            buffer.add_rows(tokens, [slot.num_cached for slot in slots], [slot.index for slot in slots])
        if chunks := batch.chunks:
            # The backend computes a lone output with other kernels, so the token before it gets an output too.
            lone = self.decoder.shape.needs_rules and sum(chunk.completes for chunk in chunks) == 1
            buffer.add_spans(
                [chunk.row.next_tokens(chunk.count) for chunk in chunks],
                [chunk.row.slot.num_cached for chunk in chunks],
                [chunk.row.slot.index for chunk in chunks],
                [min(2 if lone else 1, chunk.count) if chunk.completes else 0 for chunk in chunks],
            )

    def decode(self, batch: StepBatch) -> Logits:
        reducing = self._reducing
        return batch.decode(self.decoder) if reducing is None else reducing.decode(batch, self.fill, lines_of)

    def own_counts(self) -> Iterable[Any]:
        return () if self._reducing is None else (self._reducing.counts,)

    def advance(self, batch: StepBatch, logits: Logits) -> None:
        """Draw from the logits of `batch`, float32 [outputs, n_vocab], and update every sequence."""
        decoding, last = lines_of(batch, logits)
        if batch.decoding:
            self._draw(decoding, batch.decoding)
        if drawing := batch.completing:
            for row, line in zip(drawing, last, strict=True):
                if row.placement.group is not None and row.placement.group.waiting > 1:
                    row.placement.group.logits = line.copy()
            self._draw(last, drawing)
        for group, samples in itertools.groupby(batch.known_logits, key=lambda row: row.placement.group):
            rows = list(samples)
            if group is not None and group.logits is not None:
                for row in rows:
                    row.placement.shared_logits = True
                self._draw(np.broadcast_to(group.logits, (len(rows), len(group.logits))), rows)
        for row in [*(chunk.row for chunk in batch.chunks), *batch.known_logits]:
            row.update_state()

    def _draw(self, logits: Logits, rows: Seq[Sequence], among: Seq[int] | None = None) -> None:
        """Draw a token for each of `rows` whose tokens are all computed. `among`: indices of those to look at."""
        among = range(len(rows)) if among is None else among
        # Forced tokens at the beginning of a text are not drawn either.
        places = [i for i in among if not rows[i].to_compute and (rows[i].tokens or not rows[i].skip())]
        for place, token in zip(places, self.sampler.draw(logits, rows, places), strict=True):
            take(rows[place], token)


def lines_of(batch: StepBatch, logits: Logits) -> tuple[Logits, Logits]:
    """Return the lines of `logits` that are of the decoding rows of `batch`, and of those whose prompts end in it."""
    if _dummy_is_first(batch):
        logits = logits[1:]
    return logits[: len(batch.decoding)], logits[len(logits) - len(batch.completing) :]


def take(row: Sequence, token: int | None) -> None:
    """Append `token`, which `row` has drawn, and the forced ones behind it; None: there was no distribution."""
    if token is not None:
        row.append(token)
        if row.params.constraint is not None:
            row.skip()
    elif row.error is None:
        row.error = f"the logits of step {len(row.tokens)} are no distribution (NaN or -inf everywhere)"


def _dummy_is_first(batch: StepBatch) -> bool:
    """Return True if the dummy token comes before the lone row: rows are in slot order."""
    return batch.dummy is not None and batch.dummy.index < batch.decoding[0].slot.index
