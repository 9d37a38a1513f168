"""StepLog: one row per step in metrics/steps.parquet, and totals for the end of the run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from operator import attrgetter, sub
from types import TracebackType

import pyarrow as pa

from operators.engine.backend.limit import MachineLimit
from operators.engine.backend.shape import DecoderShape
from operators.engine.scheduler.scheduler import Scheduler
from operators.engine.scheduler.slots import Counts
from operators.engine.scheduler.step_batch import IdleReason, StepBatch
from pipeline.api.meter import Clock, Histogram, StageMeter, StageState
from pipeline.api.numbers import counted
from pipeline.api.protocols import Table

_CHANGES = ("shared_tokens", "moves", "snapshots_taken", "snapshots_used", "snapshots_evicted")
"""Counts of the scheduler whose change since the step before is a column."""
_changes = attrgetter(*_CHANGES)
_REASONS = tuple(IdleReason)
STEPS_SCHEMA = pa.schema(
    [
        ("t_s", pa.float64()),
        *((name, pa.int32()) for name in ("engine", "rows", "prefill_tokens", "decode_tokens")),
        *((name, pa.float64()) for name in ("form_s", "encode_s", "draft_s", "decode_s", "sample_s")),
        ("kv_tokens", pa.int64()),
        *((name, pa.int32()) for name in _CHANGES),
        ("snapshot_bytes", pa.int64()),
        *((name, pa.int32()) for name in ("drafted_tokens", "accepted_tokens")),
        *((f"unfilled_{reason.value}", pa.int32()) for reason in IdleReason),
    ]
)


@dataclass
class StepTotals:
    """Totals over the steps of an engine."""

    steps: float = counted("steps of engines", "steps")
    slot_steps: float = counted("slots of all decode steps", "slots")
    slot_steps_used: float = counted("slots of all decode steps in which rows decoded", "slots")
    form_s: float = counted("choosing rows and filling batches", "s")
    encode_s: float = counted("encoding images", "s")
    draft_s: float = counted("making drafts", "s")
    decode_s: float = counted("calls of the model", "s")
    sample_s: float = counted("drawing tokens", "s")
    prefill_tokens: float = counted("tokens of prompts that the model computed", "tokens")
    drafted_tokens: float = counted("drafts in calls of the model", "tokens")
    accepted_tokens: float = counted("drafts in calls of the model that were drawn, too", "tokens")


class Timer:
    """Times a phase, as a context manager.

    Args:
        seconds: of each phase; set when it ends.
        meter: is busy in it; None: none is.
    """

    __slots__ = ("_began", "_clock", "_meter", "_phase", "_seconds", "_state_before")

    def __init__(self, phase: str, seconds: dict[str, float], clock: Clock, meter: StageMeter | None) -> None:
        self._phase, self._seconds, self._clock, self._meter = phase, seconds, clock, meter
        self._began = 0.0
        self._state_before: StageState | None = None

    def __enter__(self) -> None:
        self._began = self._clock()
        if self._meter is not None:
            self._state_before = self._meter.clock.enter(StageState.BUSY)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._meter is not None and self._state_before is not None:
            self._meter.clock.enter(self._state_before)
        self._seconds[self._phase] = self._clock() - self._began


class StepLog:
    """Times the steps of an engine, writes a row for each, and adds them up.

    Args:
        table: metrics/steps.parquet; shared by all engines.
        shape: of the engine's decoder.
        meters: of decode and of sample.
        began: when the first engine began, on `clock`, in seconds.
        engine: its number.
        limit: of the machine, which adds the calls up; None: it is not known.
    """

    def __init__(
        self,
        table: Table,
        shape: DecoderShape,
        meters: tuple[StageMeter, StageMeter],
        clock: Clock = time.perf_counter,
        began: float = 0.0,
        engine: int = 0,
        limit: MachineLimit | None = None,
    ) -> None:
        self.clock = clock
        self.totals = StepTotals()
        self.limit = limit
        self.meters = meters
        self._table = table
        self._engine = engine
        self._slots = shape.slots
        self._began = began
        self._seconds: dict[str, float] = {"encode": 0.0, "draft": 0.0}
        busy = {"decode": meters[0], "sample": meters[1], "draft": meters[0], "encode": meters[0]}
        phases = ("form", "encode", "draft", "fill", "decode", "sample")
        self._timers = {phase: Timer(phase, self._seconds, clock, busy.get(phase)) for phase in phases}
        self._last_counts = _changes(Counts())
        self._prefill_calls = meters[0].histogram("prefill_call", "Calls of the model that compute prompts.")
        self._decode_calls = meters[0].histogram("decode_call", "Calls of the model that only decode.")
        self._tokens = Histogram()
        if shape.step_tokens == 1 and not shape.draft:  # others draw no token in a step, or several
            self._tokens = meters[0].histogram("token", "Decode steps, once for each row that drew a token in it.")

    def timed(self, phase: str) -> Timer:
        """Time a phase of a step: form, encode, draft, fill, decode or sample. The meter of decode is busy in encode,
        draft and decode, that of sample in sample."""
        if phase == "form":
            self._seconds["encode"] = 0.0
        return self._timers[phase]

    def record(self, batch: StepBatch, tokens: int, began: float, scheduler: Scheduler) -> None:
        """Write the step of `batch` that was just made, with `tokens` in the buffer of the backend."""
        sequences = batch.sequences
        prefill_tokens = sum(chunk.count for chunk in batch.chunks)
        decode_tokens = tokens - prefill_tokens - (batch.dummy is not None)
        seconds, counts, last_counts, sums = self._seconds, _changes(scheduler.counts), self._last_counts, self.totals
        form_s = seconds["form"] + seconds["fill"]
        self._table.append(
            began - self._began,
            self._engine,
            len(sequences),
            prefill_tokens,
            decode_tokens,
            form_s,
            seconds["encode"],
            seconds["draft"],
            seconds["decode"],
            seconds["sample"],
            sum(row.slot.num_cached for row in sequences),
            *map(sub, counts, last_counts),
            scheduler.cache.snapshot_bytes,
            batch.drafted,
            batch.accepted,
            *(batch.idle.get(reason, 0) for reason in _REASONS),
        )
        self._last_counts = counts
        for meter in self.meters:
            meter.batches += 1
            meter.rows_in += len(sequences)
            meter.rows_out += len(sequences)
        sums.steps += 1
        sums.prefill_tokens += prefill_tokens
        sums.drafted_tokens += batch.drafted
        sums.accepted_tokens += batch.accepted
        sums.form_s += form_s
        sums.encode_s += seconds["encode"]
        sums.draft_s += seconds["draft"]
        sums.decode_s += seconds["decode"]
        sums.sample_s += seconds["sample"]
        if prefill_tokens:
            self._prefill_calls.add(seconds["decode"])
        elif batch.decoding:
            self._decode_calls.add(seconds["decode"])
        if self.limit is not None and tokens:
            each = decode_tokens // max(len(batch.decoding), 1)
            spans = [(each, row.slot.num_cached) for row in batch.decoding]
            spans += [(chunk.count, chunk.row.slot.num_cached) for chunk in batch.chunks]
            outputs = decode_tokens + sum(chunk.completes for chunk in batch.chunks)
            self.limit.add(spans, outputs, seconds["decode"])
        if batch.decoding:
            sums.slot_steps += self._slots
            sums.slot_steps_used += len(batch.decoding)
            self._tokens.add(form_s + seconds["decode"] + seconds["sample"], len(batch.decoding))
