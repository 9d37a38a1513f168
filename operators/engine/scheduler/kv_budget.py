"""How much room the KV cache has, and whom it is reserved for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace

from operators.engine.backend.interface import Decoder, DecoderShape
from operators.engine.scheduler import policy
from operators.engine.scheduler.policy import KvState
from operators.engine.scheduler.prefix_cache import Counts
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import Slot


class KvRoom:
    """The cells of a decoder.

    In the per-sequence layout every slot has room for a row of the greatest length, and there is nothing to decide. In
    the unified layout the cells of all slots are one store. By default a row is admitted when the longest that it can
    get fits beside the longest that the others can get; with `optimistic` when what is to be expected does, from the
    lengths of the rows that have finished. Cells that rows share are counted for each.

    Args:
        shape: the decoder's sizes.
        optimistic: promise cells by expected lengths; rows may then have to give up their slots.
    """

    def __init__(self, shape: DecoderShape, optimistic: bool) -> None:
        self._cells = None if shape.per_sequence else shape.cells
        self._optimistic = optimistic
        self._finished = 0
        self._finished_tokens = 0

    @property
    def is_shared(self) -> bool:
        """Whether rows take room from each other."""
        return self._cells is not None

    def learn(self, rows: Seq[Sequence]) -> None:
        """There is no room for more than `rows` have in the cache now; but for the longest of them there is, alone."""
        if self._cells is not None:
            held = sum(row.n_past for row in rows)
            self._cells = min(self._cells, max(held, *(row.cells(row.max_tokens) for row in rows)))

    def state(self, rows: Iterable[Sequence]) -> KvState:
        """What is reserved for `rows`."""
        mean = self._finished_tokens / self._finished if self._finished else None
        state = KvState(self._cells, 0, self._optimistic, mean)
        if self._cells is None:
            return state
        return replace(state, reserved=sum(policy.reservation(row, state) for row in rows))

    def lacks(self, rows: Iterable[Sequence], more: int) -> bool:
        """Whether `more` tokens are too many beside what `rows` have in the cache."""
        return self._cells is not None and sum(row.n_past for row in rows) + more > self._cells

    def left(self, rows: Iterable[Sequence], taken: int, most: int) -> int:
        """Tokens that may still be computed beside `taken`, `most` at most."""
        if self._cells is None:
            return most
        return min(most, self._cells - sum(row.n_past for row in rows) - taken)

    def finished(self, row: Sequence) -> None:
        """Learn from the length of `row`."""
        self._finished += 1
        self._finished_tokens += len(row.tokens)


class Paused:
    """Rows that gave up their slots and go on as soon as there is room, those that began first before the others.

    Args:
        decoder: saves and restores.
        most_mb: MiB of saved rows; one that does not fit computes its tokens again.
        counts: counted here: preempted_saved and preempted_anew.
    """

    def __init__(self, decoder: Decoder, most_mb: int, counts: Counts) -> None:
        self._decoder = decoder
        self._most_bytes = most_mb << 20
        self._bytes = 0
        self._counts = counts
        self.rows: deque[Sequence] = deque()

    def pause(self, row: Sequence, *, always_save: bool) -> None:
        """`row` gives up its slot. `always_save`: because its bits would change if it computed its tokens again."""
        saved: bytes | None = None
        if always_save or self._bytes < self._most_bytes:
            saved = self._decoder.save(row.slot)
            if not always_save and self._bytes + len(saved) > self._most_bytes:
                saved = None
        row.give_up(saved)
        if saved is None:
            self._counts.preempted_anew += 1
        else:
            self._bytes += len(saved)
            self._counts.preempted_saved += 1
        self.rows.append(row)

    def next(self) -> Sequence | None:
        """The row that goes on next."""
        return min(self.rows, key=lambda row: row.placement.admission, default=None)

    def resume(self, row: Sequence, slot: Slot) -> None:
        """`row` has the empty `slot`."""
        self.rows.remove(row)
        saved, row.placement.saved = row.placement.saved, None
        if saved is not None:
            self._bytes -= len(saved)
            self._decoder.restore(slot.index, saved)
        row.settle()

    def forget(self, belongs: Callable[[Sequence], bool]) -> None:
        """Forget the rows that `belongs` names."""
        for row in [row for row in self.rows if belongs(row)]:
            self.rows.remove(row)
            self._bytes -= len(row.placement.saved or b"")
