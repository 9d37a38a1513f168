"""Who is admitted, in which slot, and what the next call computes.

In the per-sequence layout a call is either the prefill of some prompts or one decode step of all rows, never both:
llama.cpp cuts a batch into micro-batches of equal token counts over consecutive slots, so a prompt beside decoding rows
would be cut where its neighbours are, its bits would depend on them, and nothing would be gained, since each
micro-batch streams the weights anew. Prompts go first: a slot that prefills later is a slot that does not decode now.
In the unified layout there is one micro-batch, and pieces of prompts ride along with the rows that decode. And so they
do where a row that decodes brings as many tokens as a piece of a prompt has
(operators/engine/strategies/block_diffusion/block_rows.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import chain

from operators.engine.backend.interface import Decoder
from operators.engine.scheduler import policy
from operators.engine.scheduler.kv_budget import KvRoom, Paused
from operators.engine.scheduler.prefill import Cut, PrefillChunk, cutting, one_micro_batch, riders
from operators.engine.scheduler.prefix_cache import Counts, Sharing
from operators.engine.scheduler.slots import SlotPool
from operators.engine.scheduler.step_batch import DummyToken, IdleReason, StepBatch
from operators.engine.scheduler.waiting_queue import Line, Queue
from operators.engine.sequence import Sequence, State
from operators.settings.runtime import EngineSettings


class Scheduler:
    """Continuous batching over the slots of one decoder.

    Args:
        decoder: whose slots they are; told what to copy and what to forget.
        queue: where rows wait.
        settings: refill, admission, preempt_every, swap_mb, row_timeout_s and optimise are read.
        cut: how rows are cut; None: prompts in pieces, and then a token a step.
    """

    def __init__(self, decoder: Decoder, queue: Queue, settings: EngineSettings, cut: Cut | None = None) -> None:
        self._decoder = decoder
        self._shape = decoder.shape
        self._settings = settings
        self._cut = cut or cutting(self._shape)
        self._admissions = itertools.count()
        self._decode_calls = 0
        self._now = 0.0
        self.queue = queue
        self.slots = SlotPool(self._shape.slots)
        self.counts = Counts()
        self._sharing = Sharing(decoder, queue, self.slots, self._cut, self.counts)
        self._room = KvRoom(self._shape, settings.admission == "optimistic")
        self._paused = Paused(decoder, settings.swap_mb, self.counts)

    @property
    def runnable(self) -> bool:
        """Whether `schedule` would give work."""
        return bool(len(self.slots) or self._paused.rows) or self.queue.admissible

    @property
    def fullness(self) -> float:
        """The share of slots that have a row in the next call, as far as rows are there for them."""
        rows = len(self.slots) + len(self._paused.rows) + self.queue.admissible_rows
        return min(1.0, rows / self.slots.size)

    @property
    def depth(self) -> int:
        """The distance from the source of the node furthest from it that has rows here, in slots or before them."""
        return max((line.depth for line in self._lines()), default=0)

    def schedule(self, now: float) -> StepBatch | None:
        """Admit rows, and decide what the next step computes; None when there is nothing to do. `now`: seconds."""
        self._now = now
        # Those that wait for a row that has just left take what they need before its slot is given away.
        drawing, before = self._sharing.begin(), len(self.slots)
        idle = self._admit(now)
        if len(self.slots) > before:
            drawing += self._sharing.begin()
        rows = self.slots.rows()
        prefilling = [row for row in rows if row.state is State.PREFILL and not self._sharing.follows(row)]
        mixes = self._cut.mixes or not self._shape.per_sequence
        match policy.next_batch(policy.StepState(len(rows), len(drawing), len(prefilling), mixes)):
            case policy.Kind.SAMPLE:
                return StepBatch(known_logits=drawing)
            case policy.Kind.PREFILL:
                grouped = self._settings.optimise.grouped_prefill
                return StepBatch(chunks=one_micro_batch(prefilling, self._shape, self._cut, grouped=grouped))
            case policy.Kind.DECODE:
                return self._step(prefilling, idle) if self._shape.per_sequence else self._mixed(prefilling, idle)
            case None:
                return None

    def computed(self, batch: StepBatch) -> None:
        """The rows of `batch` have been moved on: cut off the dummy token."""
        if batch.dummy is not None:
            self._decoder.truncate(batch.dummy.slot, batch.dummy.position)
        for row in batch.sequences:
            if row.placement.group is not None and row.tokens:
                self.queue.settle(row)

    def failed(self, batch: StepBatch) -> None:
        """The backend refused `batch`: forget what it may have left in the KV cache."""
        self.forget(batch)
        self.counts.failed_calls += 1

    def forget(self, batch: StepBatch) -> None:
        """Forget what `batch`, from which no row has been moved on, has left in the KV cache."""
        for row in batch.sequences:
            self._decoder.truncate(row.slot, row.n_past)
        if batch.dummy is not None:
            self._decoder.truncate(batch.dummy.slot, batch.dummy.position)

    def halves(self, batch: StepBatch) -> list[StepBatch]:
        """`batch`, which computes two rows or more, as two."""
        rows, chunks = batch.decoding, batch.chunks
        if rows and chunks:
            return [self._batch(rows, []), self._batch([], chunks)]
        if chunks:
            return [self._batch([], some) for some in (chunks[: len(chunks) // 2], chunks[len(chunks) // 2 :])]
        return [self._batch(some, []) for some in (rows[: len(rows) // 2], rows[len(rows) // 2 :])]

    def make_room(self) -> bool:
        """The backend has no room for what a call would add. Returns whether rows can wait for it: those that are to
        wait give up their slots at the next call."""
        if not self._room.is_shared or len(self.slots) < 2:
            return False
        self._room.learn(self.slots.rows())
        return True

    def finish(self, now: float) -> list[Sequence]:
        """Take the rows that have ended, and those over the time limit, out of their slots. `now`: seconds."""
        self._expire(now)
        ended: list[Sequence] = []
        for row in self.slots.rows():
            if row.tokens and not row.times.first_token:
                row.times.first_token = now
            if row.finish_reason is not None or row.error is not None:
                row.times.finished = now
                self._release(row)
                row.state = State.FINISHED
                ended.append(row)
        return ended

    def abandon(self, belongs: Callable[[Sequence], bool]) -> None:
        """Forget the rows that `belongs` names, in slots and out of them."""
        for row in self.slots.rows():
            if belongs(row):
                self._release(row)
        for row in filter(belongs, self._paused.rows):
            self.queue.settle(row)
        self._paused.forget(belongs)

    def clear(self) -> None:
        """Forget what rows that have left their slots have left there."""
        for slot in self.slots.slots:
            if slot.row is None:
                self._sharing.clear(slot)

    def _expire(self, now: float) -> None:
        """Refuse the rows that have been in a slot for longer than a row may."""
        limit = self._settings.row_timeout_s
        if limit is None:
            return
        for row in self.slots.rows():
            in_slot = now - row.times.admitted - row.times.preempted_s
            if in_slot > limit and row.finish_reason is None and row.error is None:
                row.error = f"it took longer than runtime.row_timeout_s={limit:g} and had {len(row.tokens)} tokens then"

    def _release(self, row: Sequence) -> None:
        """A row has ended, or its node has left: its slot is free."""
        self._room.finished(row)
        self.queue.settle(row)
        self._sharing.forget(row)
        self._sharing.vacate(self.slots.release(row), row)

    def _lines(self) -> Iterable[Line]:
        for row in chain(self.slots.rows(), self._paused.rows):
            if isinstance(row.placement.node_queue, Line):
                yield row.placement.node_queue
        yield from (line for line in self.queue.lines if line.admissible_rows)

    def _admit(self, now: float) -> IdleReason:
        """Fill the free slots; returns why those that stay free do."""
        while (row := self._paused.next()) is not None:
            if not self.slots.free or not policy.may_admit(row, self._room.state(self.slots.rows())):
                return IdleReason.ROOM
            self._paused.resume(row, self._sharing.vacant_slot(row))
            row.times.preempted_s += now
        queue = self.queue
        if len(self.slots) and self.slots.free < self._settings.refill and queue.waiting:
            return IdleReason.REFILL
        taken: list[Sequence] = []
        kv = self._room.state(self.slots.rows())
        while len(taken) < self.slots.free:
            row = queue.take(self.slots, partial(policy.may_admit, state=kv))
            if row is None:
                break
            if kv.cells is not None:
                kv = replace(kv, reserved=kv.reserved + policy.reservation(row, kv))
            row.times.admitted = now
            row.placement.admission = next(self._admissions)
            taken.append(row)
        if taken:
            self._sharing.place(taken)
        if queue.waiting:
            return IdleReason.ROOM if queue.admissible else IdleReason.CREDIT
        return IdleReason.TAIL if queue.ended else IdleReason.INPUT

    def _step(self, prefilling: list[Sequence], idle: IdleReason) -> StepBatch:
        """One step of all rows, each slot its own stream; and of prompts, where these bring as many tokens."""
        self._decode_calls += 1
        every = self._settings.preempt_every
        if every is not None and self._decode_calls % every == 0 and len(self.slots) > 1:
            self._preempt(always_save=True)
        # A hole cuts the step into several micro-batches; and the backend computes a row that is alone in one with
        # other kernels.
        if self._settings.optimise.compaction or (self._shape.deterministic and self.slots.lonely()):
            self._close_holes()
        begun = [row for row in prefilling if row.state is State.PREFILL]
        chunks = [PrefillChunk(row, self._cut.piece(row, self._shape.n_ubatch)) for row in begun]
        reasons = {idle: self.slots.free, IdleReason.PREFIX: sum(map(self._sharing.follows, self.slots.rows()))}
        return self._batch(self._decoding(), chunks, {reason: count for reason, count in reasons.items() if count})

    def _batch(
        self, rows: list[Sequence], chunks: list[PrefillChunk], idle: dict[IdleReason, int] | None = None
    ) -> StepBatch:
        """A batch, with a dummy token beside a row that is alone in it with a single token."""
        small = [*rows, *(chunk.row for chunk in chunks)] if self._cut.mixes else rows
        return StepBatch(rows, chunks, idle=idle or {}, dummy=self._dummy_beside(small))

    def _mixed(self, prefilling: list[Sequence], idle: IdleReason) -> StepBatch:
        """One step of all rows that decode, and pieces of prompts beside them, in one micro-batch."""
        while self._room.lacks(self.slots.rows(), self._tokens(self._decoding())) and len(self.slots) > 1:
            self._preempt(always_save=False)
        while True:
            decoding = self._decoding()
            tokens = self._tokens(decoding)
            room = self._shape.n_ubatch - tokens if decoding else self._shape.call_tokens
            room = self._room.left(self.slots.rows(), tokens, room)
            chunks = riders([row for row in prefilling if row.state is State.PREFILL], room, self._cut)
            if decoding or chunks:
                break
            self._preempt(always_save=False)
        return StepBatch(decoding, chunks, idle={idle: self.slots.free} if self.slots.free and decoding else {})

    def _tokens(self, decoding: list[Sequence]) -> int:
        return sum(map(self._cut.step, decoding))

    def _decoding(self) -> list[Sequence]:
        return [row for row in self.slots.rows() if row.state is State.DECODE]

    def _preempt(self, *, always_save: bool) -> None:
        """A row gives up its slot and goes on later."""
        row = policy.victim(self.slots.rows())
        self._sharing.forget(row)
        self._paused.pause(row, always_save=always_save)
        row.times.preempted_s -= self._now
        self._sharing.clear(self.slots.release(row))

    def _dummy_beside(self, rows: list[Sequence]) -> DummyToken | None:
        """A token that keeps the bits of a lone row, where the backend computes one token with other kernels."""
        if len(rows) != 1 or not self._cut.lone or not self._shape.deterministic:
            return None
        if rows[0].n_past < self._decoder.lone_tokens:
            return None
        above = rows[0].slot + 1
        if above >= self.slots.size and above > 1:
            above = rows[0].slot - 1
        if above >= self.slots.size:  # a decoder of one slot has a second one for this alone
            return DummyToken(above)
        neighbour = self.slots.slots[above]
        if neighbour.row is not None:
            return DummyToken(above, neighbour.row)
        self._sharing.clear(neighbour)
        return DummyToken(above)

    def _close_holes(self) -> None:
        """Move the highest rows into the lowest free slots."""
        while (hole := self.slots.hole()) is not None:
            source, target = hole
            row = self.slots.row_of(source)
            self._decoder.copy(source.index, target.index, row.n_past)
            self.slots.release(row)
            self.slots.allocate(row, target)
            self._sharing.moved(source, target)
            self.counts.moves += 1
