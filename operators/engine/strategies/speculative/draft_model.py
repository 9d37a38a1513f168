"""DraftModel: drafts by a small model, greedily, in a context of its own.

A draft of k tokens takes k calls with a token of each row, of which the first has two where the whole last draft was
right. Rows bring equally many: those that are less behind than others compute some tokens again. A unified KV cache
would not need that, but there every token looks through the cells of all rows.

What it computes decides no token of a text. So a row that loses its slot may lose its seat, too, and a call that fails
costs the drafts alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Seq

import numpy as np

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.interface import Decoder
from operators.engine.sequence import Sequence
from operators.engine.strategies.speculative.call_times import MEASURED_STEPS, CallTimes, StepTime
from operators.engine.strategies.speculative.draft_length import DraftingCosts, Kind
from operators.engine.strategies.speculative.lookup import NOTHING, Draft, DraftedRow
from operators.engine.strategies.speculative.seats import Seats
from pipeline.api.meter import Clock

MODEL: Kind = ("model", 0)
"""The kind of its drafts."""
USUAL_TOKENS = 2
"""Tokens of a row in the first call of a draft, at most, where every step drafts."""
PROBE_TOKENS = 64
"""Of a prompt that is made up, to measure how fast the model reads."""
MOST_FAILURES = 3
"""After so many failed calls in succession it drafts no more."""
_ABORTED = 2
_NEVER_S = 1e9
log = logging.getLogger("pipeline.decode")


class DraftModel:
    """Makes drafts for the rows of one context of the job's model.

    Args:
        decoder: a context of the draft model, empty, with as many slots and as long rows as the other.
        n_vocab, own_vocab: words of the job's model and of the draft model. The larger vocabulary has unused words
            behind those of the other.
    """

    def __init__(self, decoder: Decoder, n_vocab: int, own_vocab: int, clock: Clock = time.perf_counter) -> None:
        self._most_tokens, self._longest = decoder.shape.n_ubatch, decoder.shape.max_sequence_tokens
        self._clock = clock
        self._seats = Seats(decoder, n_vocab, own_vocab)
        self._calls = CallTimes()
        self._token_s: StepTime | None = None
        self._failures = self._ended = self._ended_tokens = 0

    @property
    def is_measured(self) -> bool:
        """True if its costs are known, or it has failed too often."""
        return self._token_s is not None or self._failures >= MOST_FAILURES

    def costs(self, rows: Seq[DraftedRow]) -> DraftingCosts:
        """Return what drafts for `rows` would cost now, once it is measured."""
        if self._token_s is None or self._failures >= MOST_FAILURES:
            return DraftingCosts((_NEVER_S, _NEVER_S))
        late = sum(max(0, self._seats.behind(row) - USUAL_TOKENS) for row in rows)
        left = sum(map(self._expected, rows))
        return DraftingCosts(self._calls.bounds(len(rows), 1), late * self._token_s.seconds, left)

    def drafts(self, rows: Seq[DraftedRow], most: Seq[int]) -> list[Draft]:
        """Return a draft for each of `rows`, of so many tokens; empty ones if the model cannot compute them."""
        counts = {row: count for row, count in zip(rows, most, strict=True) if count > 0}
        tokens: dict[DraftedRow, list[int]] = {}
        if counts and self._failures < MOST_FAILURES:
            try:
                tokens = self._draft(counts)
                self._failures = 0
            except DecodeFailed as failure:
                self._fail(failure)
        return [Draft(tokens[row], MODEL) if row in tokens else NOTHING for row in rows]

    def ended(self, row: Sequence) -> None:
        """Give up the seat of `row`."""
        self._ended += 1
        self._ended_tokens += len(row.tokens)
        self._seats.release(row)

    def _draft(self, counts: dict[DraftedRow, int]) -> dict[DraftedRow, list[int]]:
        began, read = self._clock(), self._seats.read
        seats = self._seats.arrange(counts)
        rows = [seat.row for seat in seats if seat.row is not None]
        lengths = [row.length for row in rows]
        width = self._width([self._seats.behind(row) for row in rows], lengths)
        starts = [length - width for length in lengths]
        texts = [self._seats.due(*each) for each in zip(seats, rows, starts, strict=True)]
        drafts = [[token] for token in self._seats.compute(seats, texts)]
        for seat, row in zip(seats, rows, strict=True):
            self._seats.note(seat, drafts=counts[row] > 1)
        calls = most = max(counts.values())
        if (read := self._seats.read - read) or width > USUAL_TOKENS:
            self._note_reading((self._clock() - began) / (read + width * len(rows)))
            began, calls = self._clock(), calls - 1
        for step in range(1, most):
            going = [i for i, row in enumerate(rows) if counts[row] > step]
            last = [np.array(drafts[i][-1:], np.int32) for i in going]
            for i, token in zip(going, self._seats.compute([seats[i] for i in going], last), strict=True):
                drafts[i].append(token)
        if calls:
            self._calls.note(len(rows), 1, (self._clock() - began) / calls)
        return dict(zip(rows, drafts, strict=True))

    def _width(self, behind: Seq[int], lengths: Seq[int]) -> int:
        """Return the tokens of each row in the first call: the most that one needs which is not much more behind than
        others. Those that are read on in calls of their own before."""
        usual = 2 * sorted(behind)[len(behind) // 2]
        most = min(self._most_tokens // len(behind), *lengths)
        return min(most, max(tokens for tokens in behind if tokens <= usual))

    def _expected(self, row: Sequence) -> float:
        """Return how many tokens `row` may get yet, by those that have ended."""
        most = row.max_tokens - len(row.tokens)
        return min(most, max(1.0, self._ended_tokens / self._ended - len(row.tokens))) if self._ended else most

    def measure(self) -> float:
        """Measure how fast the model reads, and what calls with a token of one row and of as many as there are cost;
        return the seconds that this took."""
        seats, start = self._seats, self._clock()
        seats.clear()
        text = np.arange(min(PROBE_TOKENS, max(1, self._longest // 2)), dtype=np.int32)
        try:
            for _ in range(2):  # the first call may read weights from disk
                began = self._clock()
                seats.compute(seats.all[:1], [text])
                self._note_reading((self._clock() - began) / len(text))
                seats.truncate(seats.all[0], 0)
            for count in sorted({1, len(seats.all)}):
                for _ in range(1 + MEASURED_STEPS):
                    began = self._clock()
                    seats.compute(seats.all[:count], [text[:1]] * count)
                    self._calls.note(count, 1, self._clock() - began)
                    for seat in seats.all[:count]:
                        seats.truncate(seat, 0)
        except DecodeFailed as failure:
            self._fail(failure)
        seats.clear()
        return self._clock() - start

    def _note_reading(self, seconds: float) -> None:
        if self._token_s is None:
            self._token_s = StepTime(seconds)
        self._token_s.note(seconds, 0)

    def _fail(self, failure: DecodeFailed) -> None:
        self._failures += 1
        if failure.code != _ABORTED:
            rest = "; it drafts no more" if self._failures >= MOST_FAILURES else ""
            log.warning("a call of the draft model failed (%s)%s", failure, rest)
        self._seats.clear()
