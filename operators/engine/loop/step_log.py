"""What is kept of every step of an engine: a row of metrics/steps.parquet, and sums for the end of the run."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from operators.engine.scheduler.step_batch import Call, Unfilled, Work
from pipeline.api.protocols import Table

STEPS_SCHEMA = pa.schema(
    [
        pa.field("t_s", pa.float64()),
        pa.field("engine", pa.int32()),
        pa.field("context", pa.int32()),
        pa.field("rows", pa.int32()),
        pa.field("prefill_tokens", pa.int32()),
        pa.field("decode_tokens", pa.int32()),
        pa.field("form_s", pa.float64()),
        pa.field("decode_s", pa.float64()),
        pa.field("sample_s", pa.float64()),
        pa.field("kv_tokens", pa.int64()),
        pa.field("shared_tokens", pa.int32()),
        pa.field("moves", pa.int32()),
        *(pa.field(f"unfilled_{cause.value}", pa.int32()) for cause in Unfilled),
    ]
)


@dataclass(frozen=True, slots=True)
class Timing:
    """When a step began, and what it spent in filling the batch, in the model and in drawing. Seconds."""

    began: float
    form_s: float
    decode_s: float
    sample_s: float


@dataclass
class StepTotals:
    """Sums over the steps of one context; `slot_steps` counts the slots of every step in which rows decoded."""

    steps: float = 0.0
    slot_steps: float = 0.0
    slot_steps_used: float = 0.0
    form_s: float = 0.0
    decode_s: float = 0.0
    sample_s: float = 0.0
    prefill_tokens: float = 0.0


class StepLog:
    """The steps of one context.

    Args:
        table: metrics/steps.parquet; shared by the contexts of all engines.
        engine: number of the engine.
        context: number of the context.
        slots: of the context.
    """

    def __init__(self, table: Table, engine: int, context: int, slots: int) -> None:
        self._table = table
        self._engine = engine
        self._context = context
        self._slots = slots
        self.totals = StepTotals()

    def add(self, work: Work, tokens: int, timing: Timing, shared_tokens: int, moves: int) -> None:
        """A step is done.

        Args:
            work: what was computed.
            tokens: in the batch.
            timing: `began` counts from the start of the first engine.
            shared_tokens: prompt tokens that were taken from other rows before it.
            moves: rows that were moved to another slot before it.
        """
        sequences = work.sequences
        prefill_tokens = decoding = beside = 0
        unfilled: dict[Unfilled, int] = {}
        if isinstance(work, Call):
            decoding, beside, unfilled = len(work.rows), int(work.beside is not None), work.unfilled
            prefill_tokens = sum(span.count for span in work.spans)
        decode_tokens = tokens - prefill_tokens - beside
        self._table.append(
            timing.began,
            self._engine,
            self._context,
            len(sequences),
            prefill_tokens,
            decode_tokens,
            timing.form_s,
            timing.decode_s,
            timing.sample_s,
            sum(row.n_past for row in sequences),
            shared_tokens,
            moves,
            *(unfilled.get(cause, 0) for cause in Unfilled),
        )
        self._sum(prefill_tokens, decoding, timing)

    def _sum(self, prefill_tokens: int, decoding: int, timing: Timing) -> None:
        sums = self.totals
        sums.steps += 1
        sums.prefill_tokens += prefill_tokens
        sums.form_s += timing.form_s
        sums.decode_s += timing.decode_s
        sums.sample_s += timing.sample_s
        if decoding:
            sums.slot_steps += self._slots
            sums.slot_steps_used += decoding
