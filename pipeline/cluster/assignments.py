"""Assignments of pieces to workers: who has which, and what becomes of them if one ends. Plain Python, no clock, no
thread.

A worker that ends may have been ended by a row (a crash in native code, no memory left). So pieces that it had are
given to others, and one that several workers ended with is computed alone: a worker has nothing else meanwhile. If that
one ends too, the piece is halved. A single row that ends workers alone is given up; all others are computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import count

from pipeline.cluster.pieces import WorkItem


class Assignments:
    """Pieces that wait and pieces that workers have.

    Args:
        in_flight: pieces that a worker may have at a time.
        poison_after: workers that may end with a piece before it is computed alone, and before a row is given up.
    """

    def __init__(self, in_flight: int, poison_after: int = 2) -> None:
        self._in_flight = in_flight
        self._poison_after = poison_after
        self._waiting: deque[WorkItem] = deque()
        self._held: dict[str, dict[int, WorkItem]] = {}
        self._by_pieces: list[dict[str, None]] = [{} for _ in range(in_flight + 1)]  # workers without a suspect
        self._proven: set[str] = set()  # workers that have answered: what ends one of these is hardly its machine
        self.numbers = count()
        """Numbers for new pieces, ascending."""
        self.redone = 0
        """Pieces that were given out again since their worker ended."""

    @property
    def waiting(self) -> int:
        """Pieces that no worker has."""
        return len(self._waiting)

    @property
    def has_idle_worker(self) -> bool:
        """True if no piece waits and a worker has none."""
        return not self._waiting and bool(self._by_pieces[0])

    @property
    def workers(self) -> list[str]:
        """Workers that are there."""
        return list(self._held)

    def pieces_of(self, worker: str) -> list[WorkItem]:
        """Return the pieces that `worker` has, in the order in which it got them."""
        return list(self._held.get(worker, {}).values())

    def add(self, piece: WorkItem) -> None:
        """Let `piece` wait for a worker."""
        self._waiting.append(piece)

    def join(self, worker: str) -> None:
        """Note that `worker` can take pieces."""
        self._held[worker] = {}
        self._by_pieces[0][worker] = None

    def leave(self, worker: str) -> list[WorkItem]:
        """Note that `worker` has ended. Its pieces go to the head of the queue, whole or in halves.

        Returns:
            Pieces of a single row that have ended too many workers alone; they are given up.
        """
        self._take_out(worker)
        self._proven.discard(worker)
        pieces = list(self._held.pop(worker, {}).values())
        again: list[WorkItem] = []
        poison: list[WorkItem] = []
        for piece in pieces:
            piece.deaths += 1
            self.redone += 1
            if len(pieces) > 1 or not self._is_suspect(piece):
                again.append(piece)
            elif halves := piece.halves(self.numbers):
                again += halves
            else:
                piece.deaths_alone += 1
                (poison if piece.deaths_alone >= self._poison_after else again).append(piece)
        self._waiting.extendleft(reversed(again))
        return poison

    def answered(self, worker: str, number: int) -> bool:
        """Note that `worker` has answered. Return False if the piece is no longer its own: the worker was taken for
        dead, so the piece has been given to another, whose answer counts."""
        held = self._held.get(worker, {})
        if number not in held:
            return False
        self._take_out(worker)
        del held[number]
        self._proven.add(worker)
        self._by_pieces[len(held)][worker] = None
        return True

    def assign(self) -> Iterator[tuple[str, WorkItem]]:
        """Yield what is to be sent now: worker and piece."""
        while self._waiting and (worker := self._worker_for(self._waiting[0])) is not None:
            piece = self._waiting.popleft()
            self._take_out(worker)
            held = self._held[worker]
            held[piece.number] = piece
            if not self._is_suspect(piece):
                self._by_pieces[len(held)][worker] = None
            yield worker, piece

    def _take_out(self, worker: str) -> None:
        self._by_pieces[len(self._held.get(worker, ()))].pop(worker, None)

    def _worker_for(self, piece: WorkItem) -> str | None:
        """Return the worker with the fewest pieces that may take `piece`. Nobody overtakes a piece that waits for a
        worker of its own, so that one becomes free: one that has answered before, if there is or may soon be such,
        since a machine on which all workers end would have the piece's rows given up."""
        if self._is_suspect(piece):
            may_be_sick = not self._proven and not any(self._held.values())
            return next((worker for worker in self._by_pieces[0] if may_be_sick or worker in self._proven), None)
        return next((worker for workers in self._by_pieces[: self._in_flight] for worker in workers), None)

    def _is_suspect(self, piece: WorkItem) -> bool:
        return piece.deaths >= self._poison_after
