"""Patience: how long servers are waited for, and how often a request is sent again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
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
_FEWER_TRIES = 2
"""Tries again, instead of `model.retries`, where other requests were given up and nothing was answered since."""


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

    def rule(self, request: Request, hidden: list[str], stops: Callable[[], bool]) -> Callable[[Again], float]:
        """Return the rule that says, after a failure of `request`, in how many seconds its next try must have begun.

        The rule raises Again where the request has no try left, and a PipelineError where the server has no time left.

        Args:
            hidden: texts that no message may quote.
            stops: the run ends, so there is no further try.
        """
        answers = self._answers

        def rule(failed: Again) -> float:
            nonlocal answers
            now, patience = time.monotonic(), self._settings.patience_s
            self._refusals.failed()
            request.failing_since = request.failing_since or now
            if stops():
                raise failed
            if failed.of_server and failed.ends is not None and self._routes.are_shut:
                raise failed.ends
            left_s = request.failing_since + patience - now
            if failed.of_server and (failed.busy or answers == self._answers):
                left_s = self._seconds_left(failed, now, hidden)
                if not self._asks_too_long(failed, left_s):
                    if now - request.failing_since > max(patience, self._settings.timeout_s):
                        raise failed
                    return left_s
            if failed.of_server:  # others are answered, so this request may be at fault
                answers = self._answers
            request.failures += 1
            if self._asks_too_long(failed, left_s):
                request.failures += 0 if failed.busy else self._settings.retries
                reason = f"{failed.reason}; {_TOO_LONG % (failed.after_s, patience)}"
                raise Again(reason, ends=EndpointError(f"{reason}. {_KEPT}") if failed.busy else None)
            if request.failures > self._tries_again(failed, request):
                raise failed
            return math.inf

        return rule

    def _tries_again(self, failed: Again, request: Request) -> int:
        """Return how often `request` is sent again: less often, where all that is known is that nothing is answered."""
        retries, is_first = self._settings.retries, not self._refusals.was_answered
        if failed.ends is not None and is_first and request.failed_at.issuperset(self._routes.all):
            return 0
        return min(retries, _FEWER_TRIES) if self._refusals else retries

    def _asks_too_long(self, failed: Again, left_s: float) -> bool:
        """Return whether a server asks for a longer wait than there is, and no other can be asked meanwhile."""
        return failed.asks_longer_than(left_s) and (len(self._routes.all) == 1 or self._routes.held_s > left_s)

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
