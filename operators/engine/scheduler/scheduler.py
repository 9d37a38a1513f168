"""Scheduler: applies the rules of policy.py to admission, slots and the next call."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from operators.engine.backend.interface import Decoder
from operators.engine.scheduler import policy
from operators.engine.scheduler.policy import StepKind
from operators.engine.scheduler.slots import Counts, SlotPool
from operators.engine.scheduler.snapshots import prefix_cache
from operators.engine.scheduler.step_batch import Chunking, IdleReason, PrefillChunk, StepBatch
from operators.engine.scheduler.waiting_queue import WaitingQueue
from operators.engine.sequence import Sequence, State
from operators.engine.sequence.placement import Slot
from operators.settings.runtime import EngineSettings


class Scheduler:
    """Continuous batching over the slots of one decoder."""

    def __init__(self, decoder: Decoder, settings: EngineSettings, chunking: Chunking) -> None:
        self._decoder, self._shape = decoder, decoder.shape
        self._settings, self._chunking = settings, chunking
        self._admissions = itertools.count()
        self._now = 0.0
        self.queue = WaitingQueue(settings.optimise, chunking, mixes_adapters=decoder.mixes_adapters)
        self.slots = SlotPool(decoder)
        self.counts = Counts()
        self.cache = prefix_cache(self.slots, self.queue, chunking, self.counts, settings)
        cells = None if self._shape.per_sequence else self._shape.cells
        self._budget = policy.KvBudget(cells, settings.admission == "optimistic")
        self._preempted: list[Sequence] = []

    @property
    def runnable(self) -> bool:
        """True if `schedule` would return work."""
        return bool(len(self.slots) or self._preempted or self.queue.admissible)

    def rank(self) -> tuple[float, int]:
        """Return the share of slots that the next call can fill, and the greatest depth in the graph of a node with
        sequences in slots or waiting."""
        rows = [*self.slots.rows(), *self._preempted]
        nodes = [row.owner for row in rows] + [node for node in self.queue.nodes if node.admissible]
        fullness = min(1.0, (len(rows) + self.queue.joining(self.slots.adapters)) / self.slots.size)
        return fullness, max((node.depth for node in nodes), default=0)

    def schedule(self, now: float) -> StepBatch | None:
        """Admit sequences, and choose the work of the next step; None if there is nothing to do. `now`: seconds."""
        self._now = now
        # Sequences that wait for the prefix of one that has left take it before its slot is given away.
        self.cache.serve()
        occupied = len(self.slots)
        idle = self._admit()
        if len(self.slots) > occupied:
            self.cache.serve()
        rows, shape = self.slots.rows(), self._shape
        known = [row for row in rows if row.state is State.SAMPLE]
        prefilling = [row for row in rows if row.state is State.PREFILL and row not in self.cache.waiting]
        counts = len(rows), len(known), len(prefilling)
        kind = policy.next_batch(*counts, per_sequence=shape.per_sequence, block=shape.block)
        if kind is StepKind.SAMPLE:
            return StepBatch(known_logits=known)
        if kind is StepKind.PREFILL:
            grouped = self._settings.optimise.grouped_prefill
            return StepBatch(chunks=policy.prefill_group(prefilling, self._chunking, shape.n_ubatch, grouped=grouped))
        return None if kind is None else self._decode_batch(prefilling if kind is StepKind.MIXED else [], idle)

    def halves(self, batch: StepBatch) -> list[StepBatch]:
        """Split `batch` in two; none if it has a single sequence."""
        rows, chunks = batch.decoding, batch.chunks
        if len(rows) + len(chunks) < 2:
            return []
        if rows and chunks:
            return [self.batch(rows, []), self.batch([], chunks)]
        n, m = len(rows) // 2, len(chunks) // 2
        return [self.batch(rows[:n], chunks[:m]), self.batch(rows[n:], chunks[m:])]

    def batch(
        self, rows: list[Sequence], chunks: list[PrefillChunk], idle: dict[IdleReason, int] | None = None
    ) -> StepBatch:
        """Make a batch without drafts, with a dummy token if it has a single token."""
        batch = StepBatch(rows, chunks, idle=idle or {})
        if len(rows) + len(chunks) == 1 and (rows or self._shape.block == 1):
            batch.dummy = self._dummy_beside(batch.sequences[0])
        return batch

    def shrink_budget(self) -> bool:
        """Lower the KV budget to the cells that sequences have now, since the backend had no room for a call; but let
        the longest fit alone. Return True if sequences can be preempted to make room, which the next call does."""
        if self._budget.cells is None or len(self.slots) < 2:
            return False
        rows = self.slots.rows()
        held = sum(row.slot.num_cached for row in rows)
        self._budget.cells = min(self._budget.cells, max(held, *(row.cells(row.max_tokens) for row in rows)))
        return True

    def finish(self, now: float) -> None:
        """Take the sequences that have ended, or are over the time limit for a slot, out of theirs, and return them to
        their nodes."""
        limit = self._settings.row_timeout_s
        ended: list[Sequence] = []
        rows = self.slots.rows()
        self.cache.save(rows)
        for row in rows:
            row.owner.count(row)
            if row.tokens and not row.times.first_token:
                row.times.first_token = now
                self.queue.leave_group(row)
            if limit is not None and not row.ended and now - row.times.admitted - row.times.paused_s > limit:
                row.error = f"it took longer than runtime.row_timeout_s={limit:g} and had {len(row.tokens)} tokens then"
            if row.finish_reason is not None or row.error is not None:
                row.times.finished = now
                self._release(row)
                row.state = State.FINISHED
                row.owner.finish(row)
                ended.append(row)
        for owner in dict.fromkeys(row.owner for row in ended):
            owner.wake()

    def abandon(self, belongs: Callable[[Sequence], bool]) -> None:
        """Remove the sequences for which `belongs` is true, in slots and waiting."""
        for row in self.slots.rows():
            if belongs(row):
                self._release(row)
        for row in filter(belongs, self._preempted):
            self.queue.leave_group(row)
        self._preempted = [row for row in self._preempted if not belongs(row)]

    def _release(self, row: Sequence) -> None:
        self._budget.finished += 1
        self._budget.finished_tokens += len(row.tokens)
        self.queue.leave_group(row)
        self.cache.waiting.pop(row, None)
        self.cache.release(self.slots.release(row))

    def _admit(self) -> IdleReason:
        """Fill the free slots; return why the remaining ones stay free."""
        queue, budget = self.queue, self._budget
        reserved = budget.reserved(self.slots.rows())
        while self._preempted:
            resumed = policy.resumed(self._preempted)
            if not self.slots.free or not policy.may_admit(resumed, budget, reserved):
                return IdleReason.ROOM
            reserved += budget.reserved([resumed])
            self.cache.empty_slot(resumed)
            self._preempted.remove(resumed)
            resumed.update_state()
            resumed.times.paused_s += self._now
        taken: list[Sequence] = []
        adapters, idle = self.slots.adapters, IdleReason.ROOM
        while len(taken) < self.slots.free:
            admitted = queue.take(partial(policy.may_admit, budget=budget, reserved=reserved), adapters)
            if isinstance(admitted, IdleReason):
                idle = admitted
                break
            adapters = admitted.adapters
            reserved += budget.reserved([admitted])
            admitted.times.admitted = self._now
            admitted.placement.admission = next(self._admissions)
            taken.append(admitted)
        if taken:
            self.cache.place(taken)
        return idle

    def _decode_batch(self, prefilling: list[Sequence], idle: IdleReason) -> StepBatch:
        """Make a step of all decoding sequences, and chunks of those that are `prefilling`."""
        compaction = self._settings.optimise.compaction
        if policy.closes_holes(self._shape, compaction=compaction, lonely=not compaction and self.slots.lonely()):
            while (hole := self.slots.hole()) is not None:
                self.cache.move(*hole)
                self.counts.moves += 1
        budget = self._budget
        while True:
            rows = self.slots.rows()
            decoding = [row for row in rows if row.state is State.DECODE]
            tokens = len(decoding) * self._shape.step_tokens
            most = self._shape.n_ubatch if decoding else self._shape.call_tokens
            if budget.cells is not None and len(rows) > 1:  # else the backend says if a lone sequence does not fit
                most = min(most, budget.cells - sum(row.slot.num_cached for row in rows))
            waiting = (row for row in prefilling if row.state is State.PREFILL)
            chunks = policy.prefill_beside(waiting, self._chunking, most - tokens)
            if budget.cells is None or (most >= tokens and (decoding or chunks)):
                break
            self._preempt()
        reasons = {idle: self.slots.free, IdleReason.PREFIX: len(self.cache.waiting)}
        return self.batch(decoding, chunks, {reason: count for reason, count in reasons.items() if count})

    def _preempt(self) -> None:
        """Take a sequence out of its slot, to compute its tokens again when there is room."""
        row = policy.victim(self.slots.rows())
        self.cache.waiting.pop(row, None)
        row.placement.preemptions += 1
        self.counts.preempted += 1
        row.state = State.WAITING
        self._preempted.append(row)
        row.times.paused_s -= self._now
        self.cache.clear(self.slots.release(row))

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
            self.cache.clear(neighbour)
        return neighbour
