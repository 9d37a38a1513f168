"""Ledger: which worker has which piece, and what becomes of the pieces of one that ends. Plain Python, no clock, no
thread.

A worker that ends may have been ended by a row (a crash in native code, no memory left). So pieces that it had are
given to others, and one that several workers ended with is computed alone: a worker has nothing else meanwhile. If that
one ends too, the piece is halved. A single row that ends workers alone is given up; all others are computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import count

from pipeline.cluster.pieces import Piece


class Ledger:
    """Pieces that wait and pieces that workers have.

    Args:
        in_flight: pieces that a worker may have at a time.
        poison_after: workers that may end with a piece before it is computed alone, and before a row is given up.
        copies: give the oldest pieces to idle workers a second time when nothing else is left to do.
    """

    def __init__(self, in_flight: int, poison_after: int = 2, *, copies: bool = True) -> None:
        self._in_flight = in_flight
        self._poison_after = poison_after
        self._copies = copies
        self._waiting: deque[Piece] = deque()
        self._held: dict[str, dict[int, Piece]] = {}
        self._alone: set[str] = set()  # workers that compute a suspect
        self._by_pieces: list[dict[str, None]] = [{} for _ in range(in_flight + 1)]  # the others, by what they have
        self._numbers = count()
        self.ending = False
        """Set it when no more pieces come."""
        self.redone = 0
        """Pieces that were given out again since their worker ended."""
        self.copied = 0
        """Pieces that were given out a second time while another worker had them."""

    @property
    def numbers(self) -> Iterator[int]:
        """Numbers for new pieces, ascending."""
        return self._numbers

    @property
    def waiting(self) -> int:
        """Pieces that no worker has."""
        return len(self._waiting)

    @property
    def hungry(self) -> bool:
        """True if no piece waits and a worker has none."""
        return not self._waiting and bool(self._by_pieces[0])

    @property
    def workers(self) -> list[str]:
        """Workers that are there."""
        return list(self._held)

    def pieces_of(self, worker: str) -> list[Piece]:
        """Return the pieces that `worker` has, in the order in which it got them."""
        return list(self._held.get(worker, {}).values())

    def add(self, piece: Piece) -> None:
        """Let `piece` wait for a worker."""
        self._waiting.append(piece)

    def join(self, worker: str) -> None:
        """Note that `worker` can take pieces."""
        self._held[worker] = {}
        self._by_pieces[0][worker] = None

    def leave(self, worker: str) -> list[Piece]:
        """Note that `worker` has ended. Its pieces go to the head of the queue, whole or in halves.

        Returns:
            Pieces of a single row that have ended too many workers alone; they are given up.
        """
        self._take_out(worker)
        pieces = list(self._held.pop(worker, {}).values())
        self._alone.discard(worker)
        again: list[Piece] = []
        poison: list[Piece] = []
        for piece in pieces:
            piece.workers.discard(worker)
            if piece.workers or piece.done:
                continue  # another worker computes it too, or has
            piece.deaths += 1
            self.redone += 1
            if len(pieces) > 1 or not self._is_suspect(piece):
                again.append(piece)
            elif halves := piece.halves(self._numbers):
                again += halves
            else:
                piece.deaths_alone += 1
                (poison if piece.deaths_alone >= self._poison_after else again).append(piece)
        self._waiting.extendleft(reversed(again))
        return poison

    def answered(self, worker: str, number: int) -> Piece | None:
        """Note that `worker` has answered; return the piece, None if it is no longer the worker's."""
        held = self._held.get(worker, {})
        if (piece := held.get(number)) is not None:
            piece.workers.discard(worker)
            piece.done = True
            self._take_out(worker)
            del held[number]
            self._alone.discard(worker)
            self._by_pieces[len(held)][worker] = None
        return piece

    def assign(self) -> Iterator[tuple[str, Piece]]:
        """Yield what is to be sent now: worker and piece."""
        while self._waiting and (worker := self._worker_for(self._waiting[0])) is not None:
            yield worker, self._give(worker, self._waiting.popleft())
        while self._copies and self.ending and not self._waiting and (found := self._to_copy()) is not None:
            self.copied += 1
            yield found[0], self._give(*found)

    def _give(self, worker: str, piece: Piece) -> Piece:
        piece.workers.add(worker)
        self._take_out(worker)
        held = self._held[worker]
        held[piece.number] = piece
        if self._is_suspect(piece):
            self._alone.add(worker)
        else:
            self._by_pieces[len(held)][worker] = None
        return piece

    def _take_out(self, worker: str) -> None:
        self._by_pieces[len(self._held.get(worker, ()))].pop(worker, None)

    def _worker_for(self, piece: Piece) -> str | None:
        """Return the worker with the fewest pieces that may take `piece`. Nobody overtakes a piece that waits for a
        worker of its own, so that one becomes free."""
        limit = 1 if self._is_suspect(piece) else self._in_flight
        return next((worker for workers in self._by_pieces[:limit] for worker in workers), None)

    def _to_copy(self) -> tuple[str, Piece] | None:
        """Return an idle worker and the oldest piece that one other worker has."""
        idle = next(iter(self._by_pieces[0]), None)
        alone = (p for held in self._held.values() for p in held.values() if len(p.workers) == 1 and not p.done)
        oldest = min((p for p in alone if not self._is_suspect(p)), key=lambda p: p.number, default=None)
        return None if idle is None or oldest is None else (idle, oldest)

    def _is_suspect(self, piece: Piece) -> bool:
        return piece.deaths >= self._poison_after
