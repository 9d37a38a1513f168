"""Places: where the workers of a run are started. One whose workers end again and again rests while others work."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from pipeline.cluster.pool import Handle
from pipeline.cluster.segment_runner import WorkerFailed

MOST_STARTS = 3
"""Workers in a row in one place that may end before they are open, or before they answer: a node that is lost takes
those of many places."""
REST_S, MOST_REST_S = 30.0, 600.0
"""Seconds of the first rest of a place, of which each next one is twice as long, and of the longest."""
MOST_DEATHS = 16
"""Workers in a row, besides two for each that is wanted, that may end before one answers or a row is given up."""
MOST_GIVEN_UP = 16
"""Rows in a row that may be given up before a worker answers: more, and it is the workers that are broken."""
log = logging.getLogger(__name__)


@dataclass
class Place:
    """A place for one worker at a time.

    Args:
        number: from 1.
        begun: workers that were started in it.
        never_opened: of these, those at last that ended before they were open.
        fruitless: those at last that ended before they had answered a piece.
        unfit: an operator could not be opened in the last one, which is tried again only after a rest.
        rests_until: time at which the next one is started; None if one is there.
        told: it was told that it rests, and nothing in it has answered since.
    """

    number: int
    begun: int = 0
    never_opened: int = 0
    fruitless: int = 0
    unfit: bool = False
    rests_until: float | None = None
    told: bool = False

    @property
    def has_hope(self) -> bool:
        """True if a worker in it may open, as far as is known."""
        return self.never_opened < MOST_STARTS and not self.unfit

    def next_name(self) -> str:
        """Return the name of its next worker, which is started now."""
        self.begun += 1
        self.rests_until = None
        return f"{self.number}.{self.begun}" if self.begun > 1 else f"{self.number}"

    def rest(self, now: float) -> float:
        """Begin to rest; return for how many seconds."""
        seconds = min(REST_S * 2.0 ** max(0, self.fruitless - MOST_STARTS), MOST_REST_S)
        self.rests_until, self.told = now + seconds, True
        return seconds

    @property
    def level(self) -> int:
        """Level of log records about it: the same is told once."""
        return logging.DEBUG if self.told else logging.WARNING


@dataclass
class Member:
    """One worker.

    Args:
        place: which a replacement takes over.
        host: its machine, "" until it is known.
    """

    name: str
    place: Place
    handle: Handle
    host: str = ""
    opened: bool = False
    answered: bool = False
    asked_at: float = 0.0
    asking: bool = False
    moved_at: float = 0.0
    stalled_at: float | None = None
    counts: object = None

    def named(self, host: str = "") -> str:
        """Return what messages call it; `host`: its machine, if that is not known yet."""
        where = self.host or host
        return f"worker {self.name} on {where}" if where else f"worker {self.name}"


def has_hope(others: Collection[Member]) -> bool:
    """Return True if one of the `others` is open, or may open."""
    return any(other.opened or other.place.has_hope for other in others)


class Places:
    """All places of a run: in which the next worker is started at once, in which later, and when that is of no use.
    `wanted`: number of workers."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self.all = [Place(number) for number in range(1, wanted + 1)]
        self._deaths_in_a_row = self._given_up_in_a_row = 0
        self.last_end = ""
        """Why the worker ended that did so last."""

    @property
    def resting(self) -> int:
        """How many wait before their next worker is started."""
        return sum(place.rests_until is not None for place in self.all)

    def rested(self, now: float) -> list[Place]:
        """Return those that have rested long enough."""
        return [place for place in self.all if place.rests_until is not None and now >= place.rests_until]

    def note_answer(self, member: Member) -> None:
        """Note that a worker has answered a piece."""
        self._deaths_in_a_row = self._given_up_in_a_row = 0
        member.answered = True
        member.place.fruitless, member.place.told = 0, False

    def note_given_up(self, why: str) -> None:
        """Note that a row is given up, whose last worker ended as `why` says: the row ended its workers. Raises
        WorkerFailed if too many are."""
        self._deaths_in_a_row = 0
        self._given_up_in_a_row += 1
        if self._given_up_in_a_row > MOST_GIVEN_UP:
            raise WorkerFailed(f"each of {MOST_GIVEN_UP} rows in a row ended its workers, the last one: {why}")

    def end(self, member: Member, why: str, others: Collection[Member], now: float) -> bool:
        """Note that a worker has ended.

        Returns:
            True if the next one of its place is to be started now; False if the place rests, since workers end in it
            again and again, while one of the `others` is open or may open.

        Raises:
            WorkerFailed: no worker is open, and none can be expected to open or to answer.
        """
        place, self.last_end = member.place, why
        opened = sum(other.opened for other in others)
        place.never_opened = 0 if member.opened else place.never_opened + 1
        place.fruitless += not member.answered
        self._deaths_in_a_row += member.opened or not opened
        in_a_row = self._deaths_in_a_row
        if in_a_row >= MOST_DEATHS + 2 * self._wanted and not any(other.answered for other in others):
            raise WorkerFailed(f"{in_a_row} workers in a row ended without an answer; the last one: {why}")
        if (place.unfit or place.fruitless >= MOST_STARTS) and has_hope(others):
            level, seconds, count = place.level, place.rest(now), place.fruitless
            log.log(
                level,
                "%d worker%s in a row ended in place %d before an answer, so the next one starts there in %g s;"
                " %d of %d are open; the last one: %s",
                *(count, "s" * (count != 1), place.number, seconds, opened, self._wanted, why),
            )
            return False
        if any(each.has_hope for each in self.all):
            return True
        raise WorkerFailed(f"workers end before they can begin, {place.never_opened} in one place; the last one: {why}")
