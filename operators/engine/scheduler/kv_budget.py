"""KvBudget: the cells of the KV cache and their reservations; Preempted: sequences that lost their slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace

from operators.engine.backend.interface import DecoderShape
from operators.engine.scheduler import policy
from operators.engine.scheduler.policy import KvState
from operators.engine.scheduler.prefix_cache import Counts
from operators.engine.sequence import Sequence, State
from operators.engine.sequence.placement import SavedCache


class KvBudget:
    """The cells of a decoder.

    In the per-sequence layout every slot has room for a sequence of the greatest length, so nothing is decided here. In
    the unified layout all slots share the cells. By default a sequence is admitted if its greatest length fits beside
    the greatest lengths of the others; with `optimistic` if its expected length does, estimated from finished
    sequences. Cells shared by sequences are counted for each.

    Args:
        shape: the decoder's sizes.
        optimistic: reserve cells by expected lengths; sequences may then be preempted.
    """

    def __init__(self, shape: DecoderShape, optimistic: bool) -> None:
        self._cells = None if shape.per_sequence else shape.cells
        self._optimistic = optimistic
        self._finished = 0
        self._finished_tokens = 0

    @property
    def is_shared(self) -> bool:
        """True if sequences compete for cells."""
        return self._cells is not None

    def shrink(self, rows: Seq[Sequence]) -> None:
        """Lower the budget to the cells that `rows` have now, since the backend has no room for more; but let the
        longest fit alone."""
        if self._cells is not None:
            held = sum(row.slot.num_cached for row in rows)
            self._cells = min(self._cells, max(held, *(row.cells(row.max_tokens) for row in rows)))

    def reserve(self, rows: Iterable[Sequence]) -> KvState:
        """Return the cells, and the reservations of `rows`."""
        mean = self._finished_tokens / self._finished if self._finished else None
        state = KvState(self._cells, 0, self._optimistic, mean)
        if self._cells is None:
            return state
        return replace(state, reserved=sum(policy.reservation(row, state) for row in rows))

    def left(self, rows: Seq[Sequence], most: int) -> int:
        """Return how many tokens may be computed beside those that `rows` have in the cache, at most `most`. A lone
        sequence may take all: the backend then says if it does not fit."""
        if self._cells is None or len(rows) < 2:
            return most
        return min(most, self._cells - sum(row.slot.num_cached for row in rows))

    def finished(self, row: Sequence) -> None:
        """Learn from the length of `row`."""
        self._finished += 1
        self._finished_tokens += len(row.tokens)


class Preempted:
    """Sequences that lost their slots, to be resumed when there is room, in order of admission.

    Args:
        most_mb: MiB for saved caches; a sequence whose cache does not fit computes its tokens again.
        counts: incremented here: preempted_saved and preempted_anew.
    """

    def __init__(self, most_mb: int, counts: Counts) -> None:
        self._most_bytes = most_mb << 20
        self._bytes = 0
        self._counts = counts
        self.rows: list[Sequence] = []

    def save(self, row: Sequence, *, always: bool) -> None:
        """Add `row`, which is about to leave its slot. `always`: save its cache whatever its size, because computing
        its tokens again would change its bits."""
        saved = row.slot.save() if always or self._bytes < self._most_bytes else None
        if saved is not None and not always and self._bytes + len(saved.data) > self._most_bytes:
            saved = None
        row.placement.preemptions += 1
        row.placement.saved = saved
        row.state = State.WAITING
        if saved is None:
            self._counts.preempted_anew += 1
        else:
            self._bytes += len(saved.data)
            self._counts.preempted_saved += 1
        self.rows.append(row)

    def next(self) -> Sequence | None:
        """Return the sequence to resume next."""
        return min(self.rows, key=lambda row: row.placement.admission, default=None)

    def resume(self, row: Sequence) -> None:
        """Resume `row`, which is in an empty slot."""
        if (saved := self._remove(row)) is not None:
            row.slot.restore(saved)
        row.update_state()

    def forget(self, belongs: Callable[[Sequence], bool]) -> list[Sequence]:
        """Remove the sequences for which `belongs` is true, and return them."""
        left = [row for row in self.rows if belongs(row)]
        for row in left:
            self._remove(row)
        return left

    def _remove(self, row: Sequence) -> SavedCache | None:
        self.rows.remove(row)
        saved, row.placement.saved = row.placement.saved, None
        self._bytes -= 0 if saved is None else len(saved.data)
        return saved
