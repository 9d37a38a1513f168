"""Patience: how long servers are waited for, how often a request is sent again, and when it is given up.

Whether a row is at fault or the server shows in what comes after it. So a request that was given up waits: an answer
to another one makes it a reject of its row, or gives it another try (client.py); and where so many in a row are given
up, the run ends, nothing of them is written, and the rest of the input is not sent into a wall.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from logging import Logger

from operators.endpoint.connection.request import Request, Routes
from operators.endpoint.connection.verdict import Again, EndpointError, without
from operators.settings.endpoint import EndpointSettings
from pipeline.api.errors import ConfigError, PipelineError

_SAID_AFTER_S, _LONG_WAIT_S = 2.0, 30.0
"""A server that does not answer is told of after so long, and at once if it asks for a long wait."""
_TOO_LONG = "it asks for %g s (Retry-After), more than model.patience_s=%g leaves"
_KEPT = "What is answered is kept, and the same command goes on"
_FIRST_S, _LONGEST_S = 0.25, 30.0
_DOUBLINGS = 7
"""From the first wait between two tries to more than the longest."""
_FEWER_TRIES = 2
"""Tries again, instead of `model.retries`, where other requests were given up and nothing was answered since."""
PASSES_S = 30.0
"""What a server may get over, such as 500, ends the run only after so long without an answer."""
_FIRST_PROBE_S, _LONGEST_PROBE_S = 1.0, 15.0


def pause_s(number: int, failed: Again, left_s: float) -> float:
    """Return the wait after the failed try `number` of a request, from 0: an exponential one with jitter, or what the
    server asks for. The next try must have begun in `left_s`. A busy server is left alone by all, see Routes."""
    wait_s = random.uniform(0, min(_FIRST_S * 2 ** min(number, _DOUBLINGS), _LONGEST_S))
    if failed.after_s is not None and not failed.busy:  # jitter, so that not all who wait come at once
        wait_s = failed.after_s + min(wait_s, 1.0)
    return min(wait_s, left_s)


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
        return min(_FIRST_PROBE_S * 2.0 ** (self._tried - 1), _LONGEST_PROBE_S)

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


class Patience:
    """Decides on failed tries, for one event loop.

    Args:
        settings: `patience_s`, `retries` and `timeout_s`.
        routes: the URLs.
        refusals: what was given up since the last answer.
        log: gets messages about waiting for the server.
    """

    def __init__(self, settings: EndpointSettings, routes: Routes, refusals: Refusals, log: Logger) -> None:
        self._settings, self._routes, self._refusals, self._log = settings, routes, refusals, log
        self._answers = 0
        self._down_since: float | None = None
        self.is_short = False
        """Whether it was said that the server does not answer."""

    def answered(self) -> None:
        """Note an answer."""
        self._answers += 1
        self._down_since = None
        if self.is_short:
            self.is_short = False
            self._log.info("the server answers again")

    def say(self, reason: str) -> None:
        """Say once, until the next answer, that the server is waited for."""
        if not self.is_short:
            self.is_short = True
            self._log.warning("%s; waiting for up to model.patience_s=%g s", reason, self._settings.patience_s)

    def begin(self, request: Request) -> None:
        """Note that `request` is sent from now on."""
        request.answers_before = self._answers

    def left_s(self, request: Request, failed: Again, hidden: list[str]) -> float:
        """Return in how many seconds the next try of `request` must have begun, after `failed`. It is not less than the
        server asks for.

        Args:
            hidden: texts that no message may quote.

        Raises:
            Again: the request has no try left.
            PipelineError: the server has no time left.
        """
        now, patience = time.monotonic(), self._settings.patience_s
        self._refusals.failed()
        request.failing_since = request.failing_since or now
        if failed.of_server and failed.ends is not None and self._routes.are_shut:
            raise failed.ends
        left_s = request.failing_since + patience - now
        if failed.of_server and (failed.busy or request.answers_before == self._answers):
            left_s = self._seconds_left(failed, now, hidden)
            if not self._asks_too_long(failed, left_s):
                if now - request.failing_since > max(patience, self._settings.timeout_s):
                    raise failed
                return left_s
        if failed.of_server:  # others are answered, so this request may be at fault
            request.answers_before = self._answers
        request.failures += 1
        if self._asks_too_long(failed, left_s):
            request.failures += 0 if failed.busy else self._settings.retries
            reason = f"{failed.reason}; {_TOO_LONG % (failed.after_s, patience)}"
            raise Again(reason, ends=EndpointError(f"{reason}. {_KEPT}") if failed.busy else None)
        if request.failures > self._tries_again(failed, request):
            raise failed
        return math.inf

    def _tries_again(self, failed: Again, request: Request) -> int:
        """Return how often `request` is sent again: less often, where all that is known is that nothing is answered."""
        retries, is_first = self._settings.retries, not self._refusals.was_answered
        if failed.ends is not None and is_first and request.failed_at.issuperset(self._routes.all):
            return 0
        return min(retries, _FEWER_TRIES) if self._refusals else retries

    def _asks_too_long(self, failed: Again, left_s: float) -> bool:
        """Return whether a server asks for a longer wait than there is, and no other can be asked meanwhile."""
        is_longer = failed.after_s is not None and failed.after_s > left_s
        return is_longer and (len(self._routes.all) == 1 or self._routes.held_s > left_s)

    def _seconds_left(self, failed: Again, now: float, hidden: list[str]) -> float:
        """Return the seconds that the servers have until one of them must have answered.

        Raises:
            EndpointError: they have passed.
        """
        patience = self._settings.patience_s
        self._down_since = self._down_since or now
        down_s, asked_s = now - self._down_since, failed.after_s or 0.0
        if _LONG_WAIT_S <= asked_s <= patience:
            self.say(f"{without(failed.reason, hidden)}; it asks for {asked_s:g} s (Retry-After)")
        elif down_s >= _SAID_AFTER_S:
            self.say(without(failed.reason, hidden))
        if down_s > patience:
            waited = f" for model.patience_s={patience:g} s" if patience else ""
            raise EndpointError(f"{failed.reason}; no request was answered{waited}. {_KEPT}")
        return patience - down_s
