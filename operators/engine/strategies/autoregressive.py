"""The autoregressive decode strategy: one token a row and step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

import numpy as np

from operators.engine.backend.interface import Decoder, DecoderShape, Logits, Model
from operators.engine.sampling.sampler import Sampler
from operators.engine.scheduler.prefill import Cut, PrefillChunk, cutting
from operators.engine.scheduler.step_batch import DummyToken, StepBatch
from operators.engine.scheduler.waiting_queue import Queue, queue_for
from operators.engine.sequence import Sequence
from operators.settings import DecodeSettings, SamplingSettings
from operators.settings.runtime import EngineSettings


class Autoregressive:
    """Fills the batch of a call and takes its logits.

    Args:
        decoder: the context; its batch is filled in place.
        sampler: draws the tokens.
    """

    @classmethod
    def method(cls, settings: DecodeSettings) -> OneByOne:
        """The strategy before there is a context."""
        return OneByOne(cls)

    def __init__(self, decoder: Decoder, sampler: Sampler) -> None:
        self._decoder = decoder
        self._sampler = sampler

    def fill(self, batch: StepBatch) -> None:
        """Put the tokens of `batch` into the decoder's buffer."""
        buffer = self._decoder.batch
        buffer.clear()
        dummy, rows = batch.dummy, batch.decoding
        if dummy is not None and _is_below(dummy, rows):
            buffer.add_rows([0], [dummy.position], [dummy.slot])
        if rows:
            buffer.add_rows([r.next_token for r in rows], [r.n_past for r in rows], [r.slot for r in rows])
        if dummy is not None and not _is_below(dummy, rows):
            buffer.add_rows([0], [dummy.position], [dummy.slot])
        if batch.chunks:
            self._fill_chunks(batch.chunks)

    def advance(self, batch: StepBatch, logits: Logits) -> None:
        """Take the logits of `batch`, float32 [outputs, n_vocab]: draw, and move every row on."""
        if batch.dummy is not None and _is_below(batch.dummy, batch.decoding):
            logits = logits[1:]
        for row in batch.decoding:
            row.n_past += 1
        if batch.decoding:
            self._draw(logits[: len(batch.decoding)], batch.decoding)
        drawing = [chunk.row for chunk in batch.chunks if chunk.draws]
        for chunk in batch.chunks:
            chunk.row.n_past += chunk.count
            chunk.row.settle()
        if drawing:
            own = logits[-len(drawing) :]
            for row, line in zip(drawing, own, strict=True):
                if row.placement.group is not None and row.placement.group.waiting > 1:
                    row.placement.group.logits = line.copy()
            self._draw(own, drawing)
        for same, samples in itertools.groupby(batch.known_logits, key=lambda row: row.placement.group):
            rows = list(samples)
            if same is not None and same.logits is not None:
                self._draw(np.broadcast_to(same.logits, (len(rows), len(same.logits))), rows)

    def totals(self) -> Mapping[str, float]:
        """Nothing that the engine does not count."""
        return {}

    def _fill_chunks(self, chunks: Seq[PrefillChunk]) -> None:
        drawing = sum(chunk.draws for chunk in chunks)
        # The backend computes a lone output with other kernels: the token before it gives a second one.
        outputs = 2 if drawing == 1 and self._decoder.shape.deterministic else 1
        self._decoder.batch.add_spans(
            [chunk.row.feed[chunk.row.n_past : chunk.row.n_past + chunk.count] for chunk in chunks],
            [chunk.row.n_past for chunk in chunks],
            [chunk.row.slot for chunk in chunks],
            [outputs if chunk.draws else 0 for chunk in chunks],
        )

    def _draw(self, logits: Logits, rows: Seq[Sequence]) -> None:
        # What a constraint leaves no choice about at the beginning of a text is not drawn either.
        places = [i for i, row in enumerate(rows) if not row.behind and (row.tokens or not row.skip())]
        for place, token in zip(places, self._sampler.draw(logits, rows, places), strict=True):
            row = rows[place]
            if token is not None:
                row.append(token)
                row.skip()
            elif row.error is None:
                row.error = f"the logits of step {len(row.tokens)} are no distribution (NaN or -inf everywhere)"


def _is_below(dummy: DummyToken, rows: Seq[Sequence]) -> bool:
    """Whether it comes before the lone row in the batch, where rows stand in the order of their slots."""
    return dummy.slot < rows[0].slot


class OneByOne:
    """Implements operators.engine.strategies.base.Method for Autoregressive: it works with all settings.

    Args:
        make: makes the strategy of a context.
    """

    def __init__(self, make: Callable[[Decoder, Sampler], Autoregressive]) -> None:
        self._make = make

    def check(self, sampling: SamplingSettings, runtime: EngineSettings) -> None:
        """See Method.check."""

    def room(self, max_sequence_tokens: int) -> int:
        """See Method.room."""
        return max_sequence_tokens

    def rows(self) -> Callable[..., Sequence]:
        """See Method.rows."""
        return Sequence

    def queue(self, settings: EngineSettings) -> Queue:
        """See Method.queue."""
        return queue_for(settings)

    def cut(self, shape: DecoderShape) -> Cut:
        """See Method.cut."""
        return cutting(shape)

    def context(self, model: Model, settings: EngineSettings) -> tuple[Decoder, Callable[[], None]]:
        """See Method.context."""
        return model.lease(settings)

    def strategy(self, decoder: Decoder, model: Model) -> Autoregressive:
        """See Method.strategy."""
        return self._make(decoder, Sampler())
