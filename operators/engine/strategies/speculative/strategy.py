"""Speculative, the decode strategy that drafts the next tokens of a row and verifies them in one call.

The rows of a call bring equally many tokens: those that are certain (forced ones of a constraint among them), then a
draft, then fillers. Each row draws in order, with the random numbers of its steps, as token by token; after the first
token that differs from what it brought the rest is truncated. So a draft, or how many tokens a call has, changes no
token. Nor a bit, where the kernels compute a token of a row the same beside others of the row as alone
(tests/operators/llama/test_speculative.py).

Leviathan et al. 2023 and Chen et al. 2023 accept or reject drafts by their probabilities, which keeps the distribution
of the text; drawing keeps the text itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

from operators.engine.backend.interface import Decoder, Logits, Model
from operators.engine.sampling.sampler import Sampler
from operators.engine.scheduler.step_batch import StepBatch
from operators.engine.strategies.autoregressive import Autoregressive, take
from operators.engine.strategies.base import DraftContext
from operators.engine.strategies.speculative.draft_length import NO_COSTS, DraftLength, RowDraft
from operators.engine.strategies.speculative.draft_model import MODEL, DraftModel
from operators.engine.strategies.speculative.lookup import NOTHING, Draft, DraftedRow, PromptLookup
from operators.engine.strategies.speculative.setup import SpeculativeSetup
from operators.settings import DecodeSettings
from operators.settings.speculative import SpeculativeSettings
from pipeline.api.errors import ConfigError
from pipeline.api.meter import Clock

FIRST_STEPS = 100
"""Steps before a draft model is measured: a job of fewer has nothing of it."""


class Speculative(Autoregressive):
    """Several tokens a step, where drafts are right."""

    settings: SpeculativeSettings
    setup = SpeculativeSetup
    drafts = True

    def __init__(
        self,
        settings: DecodeSettings,
        decoder: Decoder,
        model: Model,
        draft: DraftContext | None = None,
        sampler: Sampler | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        super().__init__(settings, decoder, model, draft, sampler)
        if not decoder.partial and decoder.rollback < self.settings.draft_tokens:
            raise ConfigError("decode=speculative drops the end of what the model keeps of a row; this one cannot")
        self._clock = clock
        self._drafter: PromptLookup | DraftModel = PromptLookup()
        if draft is not None:
            self._drafter = DraftModel(draft[0], model.n_vocab, draft[1].n_vocab, clock)
        self._length = DraftLength()
        self._prepared: StepBatch | None = None
        self._tokens = 1
        self._known: list[int] = []
        self._drafts: list[Draft] = []
        self._brought: list[list[int]] = []
        self._began = self._drafting_s = 0.0

    def draft(self, batch: StepBatch) -> None:
        began = self._clock()
        self._reset(batch)
        if batch.decoding and not batch.chunks:
            self._choose(cast(list[DraftedRow], batch.decoding))
        self._drafting_s = self._clock() - began

    def fill(self, batch: StepBatch) -> None:
        if self._prepared is not batch:  # a part of a call that has failed
            self._reset(batch)
        rows = cast(list[DraftedRow], batch.decoding)
        self._began = self._clock()
        if self._tokens == 1:
            super().fill(batch)
            return
        batch.dummy = None  # it is for a lone token
        self._brought = [_bring(row, draft, self._tokens) for row, draft in zip(rows, self._drafts, strict=True)]
        slots = [row.slot for row in rows]
        outputs = [self._tokens] * len(rows)
        batch.begin(self.decoder.batch)
        self.decoder.batch.add_spans(self._brought, [s.num_cached for s in slots], [s.index for s in slots], outputs)

    def advance(self, batch: StepBatch, logits: Logits) -> None:
        rows = cast(list[DraftedRow], batch.decoding)
        lengths = [(row.slot.num_cached, len(row.tokens)) for row in rows] if self._drafts else []
        if self._tokens == 1:
            super().advance(batch, logits)
        else:
            self._verify(rows, logits)
        counted = len(rows)
        for row, known, draft, (cached, made) in zip(rows, self._known, self._drafts, lengths, strict=False):
            counted += row.slot.num_cached - cached
            self._learn(batch, row, draft, max(0, self._tokens - known), row.tokens[made:])
        if rows and not batch.chunks:
            self._length.note(len(rows), self._tokens, counted, self._clock() - self._began, self._drafting_s)
        elif batch.chunks:
            self._length.times.interrupted()
        for ended in batch.sequences:
            if ended.finish_reason is not None:
                self._drafter.ended(cast(DraftedRow, ended))

    def _reset(self, batch: StepBatch) -> None:
        self._prepared = batch
        self._known, self._drafts, self._tokens, self._drafting_s = [], [], 1, 0.0

    def _choose(self, rows: Sequence[DraftedRow]) -> None:
        """Make the drafts of `rows`, and choose the tokens that each brings to this call.

        What is looked up costs next to nothing: it is there before the choice. A draft model is asked after it.
        """
        shape = self.decoder.shape
        room = shape.max_sequence_tokens - max(row.slot.num_cached for row in rows)
        most = min(1 + self.settings.draft_tokens, shape.n_ubatch // len(rows), room)
        model = self._drafter if isinstance(self._drafter, DraftModel) else None
        early = model is not None and self._length.times.steps < FIRST_STEPS
        if self.settings.adaptive and (early or self._length.skips(len(rows), most)):
            return
        if self.settings.adaptive and model is not None and not model.is_measured:
            self._length.lose(model.measure())
            return
        began = self._clock()
        self._known = known = [row.to_compute for row in rows]
        # The last token of a completion is drawn and never computed.
        left = [min(most - n, row.max_tokens - len(row.tokens) - 1) for n, row in zip(known, rows, strict=True)]
        costs, rate = NO_COSTS, self._length.rate
        if model is not None:
            costs = model.costs(rows) if self.settings.adaptive else NO_COSTS
            self._drafts = [NOTHING] * len(rows)
            brings = [RowDraft(n, room, rate(MODEL, row.rate)) for n, room, row in zip(known, left, rows, strict=True)]
        else:
            self._drafts = drafts = self._drafter.drafts(rows, left)
            of_rows = zip(known, drafts, rows, strict=True)
            brings = [RowDraft(n, len(draft.tokens), rate(draft.kind, row.rate)) for n, draft, row in of_rows]
        self._tokens = max(1, most)
        if self.settings.adaptive:
            self._tokens = self._length.choose(brings, most, costs)
            if self._tokens == 1:
                self._length.skip(len(rows), self._clock() - began)
        if model is not None and self._tokens > 1:
            brought = [min(n, self._tokens - k) for n, k in zip(left, known, strict=True)]
            self._drafts = model.drafts(rows, brought)

    def _verify(self, rows: Sequence[DraftedRow], logits: Logits) -> None:
        """Draw from `logits`, float32 [rows * tokens, n_vocab], as long as the tokens that rows brought are theirs."""
        lines = logits.reshape(len(rows), self._tokens, -1)
        computed = [row.slot.num_cached - 1 + self._tokens for row in rows]
        ahead = self.sampler.draw_ahead(lines, rows)
        if ahead is None:
            self._draw_all(rows, lines)
        else:
            for row, brought, tokens in zip(rows, self._brought, ahead, strict=True):
                _follow(row, brought, tokens)
        for row, length in zip(rows, computed, strict=True):
            if row.slot.num_cached < length:
                row.slot.truncate(row.slot.num_cached)
            if not row.ended:
                row.update_state()

    def _draw_all(self, rows: Sequence[DraftedRow], lines: Logits) -> None:
        """Draw from `lines`, float32 [rows, tokens, n_vocab], place by place."""
        going: Sequence[int] = range(len(rows))
        for place in range(self._tokens):
            self._draw(lines[:, place], rows, going)
            going = [i for i in going if _is_next(rows[i], self._brought[i], place + 1)]
            if not going:
                break
            for i in going:
                rows[i].slot.accept()

    def _learn(self, batch: StepBatch, row: DraftedRow, draft: Draft, room: int, drawn: Sequence[int]) -> None:
        """Compare `draft`, of which the call had the first `room` tokens, with the tokens that `row` has `drawn`."""
        pairs = list(zip(draft.tokens, drawn, strict=False))
        right = next((n for n, (one, other) in enumerate(pairs) if one != other), len(pairs))
        row.rate = self._length.verified(draft.kind, row.rate, right, rejected=right < len(pairs))
        brought = min(len(draft.tokens), room)
        row.drafted += brought
        row.accepted += min(right, brought)
        batch.drafted += brought
        batch.accepted += min(right, brought)


def _bring(row: DraftedRow, draft: Draft, count: int) -> list[int]:
    """Return `count` tokens: those to compute next, then those of the draft, then zeros."""
    due = row.to_compute
    certain = [row.next_token] if due == 1 else row.next_tokens(min(due, count)).tolist()
    brought = [*certain, *draft.tokens[: count - len(certain)]]
    return brought + [0] * (count - len(brought))


def _follow(row: DraftedRow, brought: Sequence[int], tokens: Sequence[int | None]) -> None:
    """Let `row` take of `tokens`, what it draws after each that it `brought`, those behind what is its own."""
    for place, token in enumerate(tokens, 1):
        if not row.to_compute:
            take(row, token)
        if not _is_next(row, brought, place):
            break
        row.slot.accept()


def _is_next(row: DraftedRow, brought: Sequence[int], place: int) -> bool:
    """Return True if `row` goes on, and with the token at `place` of those that it `brought`."""
    return place < len(brought) and not row.ended and row.next_token == brought[place]
