"""Refusals: requests that were given up since the last answer.

Whether a row is at fault or the server shows in what comes after it. So a request that was given up waits: an answer
to another one makes it a reject of its row, or gives it another try (client.py); and where so many in a row are given
up, the run ends, nothing of them is written, and the rest of the input is not sent into a wall.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from operators.endpoint.connection.request import Request
from operators.endpoint.connection.verdict import EndpointError
from operators.settings.endpoint import EndpointSettings
from pipeline.api.errors import ConfigError, PipelineError

PASSES_S = 30.0
"""What a server may get over, such as 500, ends the run only after so long without an answer."""
_FIRST_S, _LONGEST_S = 1.0, 15.0


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A request that was given up.

    Args:
        error: why its row would be a reject.
        ends: what ends the run if nothing was answered before, or nothing can be answered; None: the row may be wrong.
        may_pass: the same request may be answered in some seconds.
    """

    request: Request
    error: str
    ends: PipelineError | None = None
    may_pass: bool = False


class Refusals:
    """Keeps what was given up since the last answer. For one thread.

    Args:
        settings: `refusals_in_a_row`, before the run ends, and `patience_s`.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        self._most, self._passes_s = settings.refusals_in_a_row, min(PASSES_S, settings.patience_s)
        self._kept: list[GivenUp] = []
        self._in_a_row = self._tried = 0
        self._since: float | None = None
        self.was_answered = False
        """Whether a request of this attempt was answered."""

    def __bool__(self) -> bool:
        return bool(self._kept)

    @property
    def is_wall(self) -> bool:
        """Whether so many in a row were given up that no further row is to be sent."""
        return self._most is not None and self._in_a_row >= self._most

    def failed(self) -> None:
        """Note that a request has failed, which may be tried again."""
        self._since = self._since or time.monotonic()

    def add(self, given_up: GivenUp) -> bool:
        """Keep a request that was given up until more is known; False: it is to be believed now."""
        self.failed()
        if self._most is None:
            return False
        self._kept.append(given_up)
        self._in_a_row += 1
        return True

    def answered(self) -> list[GivenUp]:
        """Note an answer, and return what was kept."""
        self.was_answered, self._since, self._tried, self._in_a_row = True, None, 0, 0
        return self.take()

    def take(self) -> list[GivenUp]:
        """Return what was kept, and keep it no longer: it counts until the next answer."""
        taken, self._kept = self._kept, []
        return taken

    def drop(self, is_meant: Callable[[Request], bool]) -> list[GivenUp]:
        """Return what was kept of those requests, and forget them."""
        dropped = [each for each in self._kept if is_meant(each.request)]
        self._kept = [each for each in self._kept if not is_meant(each.request)]
        self._in_a_row -= len(dropped)
        return dropped

    @property
    def last_error(self) -> str:
        """Why the last of them was given up."""
        return self._kept[-1].error if self._kept else "the server refuses every request"

    def next_try_s(self) -> float | None:
        """Return in how many seconds a request at the wall is to be sent once more; None: none is."""
        may_pass = any(each.may_pass for each in self._kept)
        if not may_pass or self._since is None or time.monotonic() - self._since >= self._passes_s:
            return None
        self._tried += 1
        return min(_FIRST_S * 2.0 ** (self._tried - 1), _LONGEST_S)

    def pop(self) -> Request | None:
        """Return the request that waits for longest of those that may pass, and keep it no longer."""
        found = next((each.request for each in self._kept if each.may_pass), None)
        self.drop(lambda request: request is found)
        return found

    def ending(self) -> PipelineError | None:
        """Return what ends the run if no request is under way or waits; None: what was kept are rejects."""
        if self._kept and (self.is_wall or (not self.was_answered and self._in_a_row > 1)):
            last = self._kept[-1]
            kind = type(last.ends) if last.ends is not None else EndpointError if last.may_pass else ConfigError
            return kind(
                f"{last.ends or last.error}; {self._in_a_row} requests in a row got no answer, so no more go out. None"
                " of their rows is written, and the same command goes on; if the rows are at fault and not the server,"
                " write model.refusals_in_a_row=null"
            )
        of_server = [each.ends for each in self._kept if each.ends is not None]
        if of_server and (not self.was_answered or isinstance(of_server[0], EndpointError)):
            return of_server[0]
        return None
