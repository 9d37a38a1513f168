"""Scheduler: applies the rules of policy.py to admission, slots and the next call."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from operators.engine.backend.interface import Decoder
from operators.engine.scheduler import policy
from operators.engine.scheduler.slots import Counts, KvBudget, Preempted, SlotPool
from operators.engine.scheduler.snapshots import prefix_cache
from operators.engine.scheduler.step_batch import Chunking, IdleReason, PrefillChunk, StepBatch
from operators.engine.scheduler.waiting_queue import WaitingQueue
from operators.engine.sequence import Sequence, State
from operators.engine.sequence.placement import Slot
from operators.settings.runtime import EngineSettings


class Scheduler:
    """Continuous batching over the slots of one decoder."""

    def __init__(self, decoder: Decoder, settings: EngineSettings, chunking: Chunking) -> None:
        self._decoder = decoder
        self._shape = decoder.shape
        self._settings = settings
        self._chunking = chunking
        self._admissions = itertools.count()
        self._now = 0.0
        self.queue = queue = WaitingQueue(settings.optimise, chunking)
        self.slots = SlotPool(decoder)
        self.counts = Counts()
        self._cache = prefix_cache(self.slots, queue, self._chunking, self.counts, settings)
        self._budget = KvBudget(self._shape, settings.admission == "optimistic")
        self._preempted = Preempted(self.counts)

    @property
    def runnable(self) -> bool:
        """True if `schedule` would return work."""
        return bool(len(self.slots) or self._preempted.rows or self.queue.admissible)

    def rank(self) -> tuple[float, int]:
        """Return the share of slots that the next call can fill, and the greatest depth in the graph of a node with
        sequences in slots or waiting."""
        rows = [*self.slots.rows(), *self._preempted.rows]
        nodes = [row.owner for row in rows if row.owner is not None] + [n for n in self.queue.nodes if n.admissible]
        fullness = min(1.0, (len(rows) + self.queue.admissible) / self.slots.size)
        return fullness, max((node.depth for node in nodes), default=0)

    def schedule(self, now: float) -> StepBatch | None:
        """Admit sequences, and choose the work of the next step; None if there is nothing to do. `now`: seconds."""
        self._now = now
        # Sequences that wait for the prefix of one that has left take it before its slot is given away.
        self._cache.serve()
        before = len(self.slots)
        idle = self._admit(now)
        if len(self.slots) > before:
            self._cache.serve()
        rows, waiting = self.slots.rows(), self._cache.waiting
        known = [row for row in rows if row.state is State.SAMPLE]
        prefilling = [row for row in rows if row.state is State.PREFILL and row not in waiting]
        shape = self._shape
        counts = len(rows), len(known), len(prefilling)
        match policy.next_batch(*counts, per_sequence=shape.per_sequence, block=shape.block):
            case policy.StepKind.SAMPLE:
                return StepBatch(known_logits=known)
            case policy.StepKind.PREFILL:
                grouped = self._settings.optimise.grouped_prefill
                return StepBatch(chunks=self._chunking.group(prefilling, shape, grouped=grouped))
            case policy.StepKind.DECODE:
                return self._decode_batch([], idle)
            case policy.StepKind.MIXED:
                return self._decode_batch(prefilling, idle)
            case None:
                return None

    def halves(self, batch: StepBatch) -> list[StepBatch]:
        """Split `batch` in two; none if it has a single sequence."""
        rows, chunks = batch.decoding, batch.chunks
        if len(rows) + len(chunks) < 2:
            return []
        if rows and chunks:
            return [self._batch(rows, []), self._batch([], chunks)]
        n, m = len(rows) // 2, len(chunks) // 2
        return [self._batch(rows[:n], chunks[:m]), self._batch(rows[n:], chunks[m:])]

    def again(self, batch: StepBatch) -> StepBatch:
        """Return a new batch for the work of `batch`, as it was before the strategy added drafts to it."""
        return self._batch(batch.decoding, batch.chunks)

    def shrink_budget(self) -> bool:
        """Lower the KV budget, since the backend had no room for a call. Return True if sequences can be preempted to
        make room, which the next call does."""
        if not self._budget.is_shared or len(self.slots) < 2:
            return False
        self._budget.shrink(self.slots.rows())
        return True

    def finish(self, now: float) -> list[Sequence]:
        """Take the sequences that have ended, or are over the time limit for a slot, out of theirs; return them."""
        limit = self._settings.row_timeout_s
        ended: list[Sequence] = []
        rows = self.slots.rows()
        self._cache.save(rows)
        for row in rows:
            if len(row.tokens) > row.placement.counted or row.finish_reason is not None:
                if row.owner is not None:
                    row.owner.count(row)
                if row.tokens and not row.times.first_token:
                    row.times.first_token = now
                    self.queue.leave_group(row)
            going = row.finish_reason is None and row.error is None
            if going and limit is not None and now - row.times.admitted - row.times.preempted_s > limit:
                row.error = f"it took longer than runtime.row_timeout_s={limit:g} and had {len(row.tokens)} tokens then"
                going = False
            if not going:
                row.times.finished = now
                self._release(row)
                row.state = State.FINISHED
                ended.append(row)
        return ended

    def abandon(self, belongs: Callable[[Sequence], bool]) -> None:
        """Remove the sequences for which `belongs` is true, in slots and waiting."""
        for row in self.slots.rows():
            if belongs(row):
                self._release(row)
        for row in self._preempted.forget(belongs):
            self.queue.leave_group(row)

    def clear(self) -> None:
        """Clear the cached contents of free slots, and the snapshots."""
        self._cache.forget()

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of the snapshots that are kept."""
        return self._cache.snapshot_bytes

    def _release(self, row: Sequence) -> None:
        self._budget.finished(row)
        self.queue.leave_group(row)
        self._cache.waiting.pop(row, None)
        self._cache.release(self.slots.release(row))

    def _admit(self, now: float) -> IdleReason:
        """Fill the free slots; return why the remaining ones stay free."""
        while (row := self._preempted.next()) is not None:
            if not self.slots.free or not policy.may_admit(row, self._budget.reserve(self.slots.rows())):
                return IdleReason.ROOM
            self._cache.empty_slot(row)
            self._preempted.resume(row)
            row.times.preempted_s += now
        queue = self.queue
        taken: list[Sequence] = []
        kv = self._budget.reserve(self.slots.rows())
        while len(taken) < self.slots.free:
            row = queue.take(partial(policy.may_admit, state=kv))
            if row is None:
                break
            if kv.cells is not None:
                kv = replace(kv, reserved=kv.reserved + policy.reservation(row, kv))
            row.times.admitted = now
            row.placement.admission = next(self._admissions)
            taken.append(row)
        if taken:
            self._cache.place(taken)
        if queue.waiting:
            return IdleReason.ROOM if queue.admissible else IdleReason.CREDIT
        return IdleReason.TAIL if queue.ended else IdleReason.INPUT

    def _decode_batch(self, prefilling: list[Sequence], idle: IdleReason) -> StepBatch:
        """Make a step of all decoding sequences, and chunks of those that are `prefilling`."""
        # A hole cuts the step into several micro-batches; and a row that is alone in one is computed by other kernels.
        if self._shape.per_sequence and (
            self._settings.optimise.compaction or (self._shape.needs_rules and self.slots.lonely())
        ):
            self._close_holes()
        while True:
            rows = self.slots.rows()
            decoding = [row for row in rows if row.state is State.DECODE]
            tokens = len(decoding) * self._shape.step_tokens
            most = self._shape.n_ubatch if decoding else self._shape.call_tokens
            room = self._budget.left(rows, most) - tokens
            chunks = self._chunking.within([row for row in prefilling if row.state is State.PREFILL], room)
            if not self._budget.is_shared or (room >= 0 and (decoding or chunks)):
                break
            self._preempt()
        reasons = {idle: self.slots.free, IdleReason.PREFIX: len(self._cache.waiting)}
        return self._batch(decoding, chunks, {reason: count for reason, count in reasons.items() if count})

    def _batch(
        self, rows: list[Sequence], chunks: list[PrefillChunk], idle: dict[IdleReason, int] | None = None
    ) -> StepBatch:
        """Make a batch, with a dummy token if it has a single token."""
        batch = StepBatch(rows, chunks, idle=idle or {})
        if len(rows) + len(chunks) == 1 and (rows or self._shape.block == 1):
            batch.dummy = self._dummy_beside(batch.sequences[0])
        return batch

    def _preempt(self) -> None:
        row = policy.victim(self.slots.rows())
        self._cache.waiting.pop(row, None)
        self._preempted.add(row)
        row.times.preempted_s -= self._now
        self._cache.clear(self.slots.release(row))

    def _dummy_beside(self, row: Sequence) -> Slot | None:
        """Return a slot for the dummy token that keeps the bits of a lone row, if the backend computes one token with
        other kernels."""
        lone = row.slot
        different = self._shape.needs_rules and lone.num_cached >= self._decoder.lone_tokens
        if self._shape.step_tokens > 1 or not different:
            return None
        if self.slots.size == 1:
            return self.slots.spare
        above = lone.index + 1
        neighbour = self.slots.slots[above if above < self.slots.size else lone.index - 1]
        if neighbour.row is None:
            self._cache.clear(neighbour)
        return neighbour

    def _close_holes(self) -> None:
        while (hole := self.slots.hole()) is not None:
            self._cache.move(*hole)
            self.counts.moves += 1
