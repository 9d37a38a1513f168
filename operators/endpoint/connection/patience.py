"""Patience: how long servers are waited for, how often a request is sent again, and the waits between its tries."""

from __future__ import annotations

import math
import random
import time
from logging import Logger

from operators.endpoint.connection.refusals import Refusals
from operators.endpoint.connection.request import Request
from operators.endpoint.connection.routes import Routes
from operators.endpoint.connection.verdict import Again, EndpointError, without
from operators.settings.endpoint import EndpointSettings

_SAID_AFTER_S, _LONG_WAIT_S = 2.0, 30.0
"""A server that does not answer is told of after so long, and at once if it asks for a long wait."""
_TOO_LONG = "it asks for %g s (Retry-After), more than model.patience_s=%g leaves"
_KEPT = "What is answered is kept, and the same command goes on"
_FIRST_S, _LONGEST_S = 0.25, 30.0
_DOUBLINGS = 7
"""From the first wait between two tries to more than the longest."""
_FEWER_TRIES = 2
"""Tries again, instead of `model.retries`, where other requests were given up and nothing was answered since."""


def pause_s(number: int, failed: Again, left_s: float) -> float:
    """Return the wait after the failed try `number` of a request, from 0: an exponential one with jitter, or what the
    server asks for. The next try must have begun in `left_s`. A busy server is left alone by all, see Routes."""
    wait_s = random.uniform(0, min(_FIRST_S * 2 ** min(number, _DOUBLINGS), _LONGEST_S))
    if failed.after_s is not None and not failed.busy:  # jitter, so that not all who wait come at once
        wait_s = failed.after_s + min(wait_s, 1.0)
    return min(wait_s, left_s)


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
