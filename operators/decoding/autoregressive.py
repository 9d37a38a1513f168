"""The autoregressive decode strategy: one token a row and step."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from operators.decoding.model import Decoder, Logits
from operators.decoding.sampler import Sampler
from operators.decoding.scheduler import Decode, Prefill, Span, Work
from operators.decoding.sequence import Sequence, State


class Autoregressive:
    """Fills the batch of a call and takes its logits.

    Args:
        decoder: the context; its batch is filled in place.
        sampler: draws the tokens.
    """

    def __init__(self, decoder: Decoder, sampler: Sampler) -> None:
        self._decoder = decoder
        self._sampler = sampler
        self._padding: int | None = None

    def fill(self, work: Work) -> None:
        """Put the tokens of `work` into the decoder's batch."""
        self._decoder.batch.clear()
        match work:
            case Decode():
                self._fill_rows(work.rows)
            case Prefill():
                self._fill_spans(work.spans)

    def advance(self, work: Work, logits: Logits) -> None:
        """Take the logits of `work`, float32 [outputs, n_vocab]: draw, and move every row on."""
        match work:
            case Decode():
                self._remove_padding()
                for row in work.rows:
                    row.n_past += 1
                self._draw(logits[: len(work.rows)], work.rows)
            case Prefill():
                complete = [span.row for span in work.spans if span.completes]
                for span in work.spans:
                    span.row.n_past += span.count
                    span.row.state = State.PREFILL if span.row.prompt_left > 1 else State.DECODE
                if complete:
                    self._draw(logits[-len(complete) :], complete)

    def _fill_rows(self, rows: Seq[Sequence]) -> None:
        batch = self._decoder.batch
        batch.add_rows([r.next_token for r in rows], [r.n_past for r in rows], [r.slot for r in rows])
        if len(rows) == 1 and self._decoder.shape.deterministic:
            # The backend computes a lone row with other kernels; a second one, in the slot beside it, keeps its bits.
            self._padding = rows[0].slot + 1
            batch.add_rows([0], [0], [self._padding])

    def _remove_padding(self) -> None:
        if self._padding is not None:
            self._decoder.remove(self._padding)
            self._padding = None

    def _fill_spans(self, spans: Seq[Span]) -> None:
        complete = sum(span.completes for span in spans)
        # For the same reason a lone output is never asked for: the token before it gives a second one.
        outputs = 2 if complete == 1 and self._decoder.shape.deterministic else 1
        rows = [span.row for span in spans]
        self._decoder.batch.add_spans(
            [span.row.prompt[span.row.n_past : span.row.n_past + span.count] for span in spans],
            [row.n_past for row in rows],
            [row.slot for row in rows],
            [outputs if span.completes else 0 for span in spans],
        )

    def _draw(self, logits: Logits, rows: Seq[Sequence]) -> None:
        for row, token in zip(rows, self._sampler.draw(logits, rows), strict=True):
            if token is None:
                row.error = f"the logits of step {len(row.tokens)} are no distribution (NaN or -inf everywhere)"
            else:
                row.append(token)
