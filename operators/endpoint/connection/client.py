"""Endpoint: sends the requests of all nodes to the servers of a model, from a thread with an event loop of its own.

A request that fails on its own account is sent again `model.retries` times, to another URL where there is one, and is
given up then: its row is a reject, unless nothing is answered after it (patience.py). What is the fault of the server
(nobody answers, too many requests) does not count: the run waits, and ends after `model.patience_s` without answers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from itertools import count
from logging import Logger
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from operators.endpoint.api.checks import NotSent, OfRow, Unusable
from operators.endpoint.connection.attempts import Attempts
from operators.endpoint.connection.concurrency import RateLimit
from operators.endpoint.connection.http import Http, require_client
from operators.endpoint.connection.patience import GivenUp, Patience, Refusals, pause_s
from operators.endpoint.connection.request import Request, Routes
from operators.endpoint.connection.verdict import Again, EndpointError, clean, without
from operators.settings.endpoint import EndpointSettings
from pipeline.api.errors import Cancelled, PipelineError

T = TypeVar("T")
_TICK_S = 0.1
STOPPED = "the run was stopped"
_GRACE_S = 1.0
"""How long requests under way may still be answered when the run is stopped."""


class Endpoint:
    """The servers of a model.

    Args:
        settings: URLs, key and limits.
        log: gets messages about waiting for the server.

    Raises:
        ConfigError: the extra is not installed, or the key's variable is not set.
    """

    def __init__(self, settings: EndpointSettings, log: Logger) -> None:
        require_client()
        settings.key()
        self._settings = settings
        self._log = log
        self._routes = Routes(settings)
        self._refusals = Refusals(settings)
        self._patience = Patience(settings, self._routes, self._refusals, log)
        self._pace = RateLimit(settings.requests_per_minute, settings.tokens_per_minute)
        self._waiting: deque[Request] = deque()
        self._tasks: dict[asyncio.Task[None], Request] = {}
        self._later: asyncio.TimerHandle | None = None
        self._probe: asyncio.TimerHandle | None = None
        self._failure: PipelineError | None = None
        self._leaving = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="endpoint", daemon=True)
        self._thread.start()
        self._http = self._call(self._connected())
        self.attempts = Attempts(settings, self._http, self._routes, log)

    def submit(self, requests: Sequence[Request]) -> None:
        """Send `requests`, in their order as far as their number in flight and the limits allow. `done` of each is
        called in the endpoint's thread, also for those that fail."""
        self._loop.call_soon_threadsafe(self._send, requests)

    def ask(self, request: Request, is_stopped: Callable[[], bool]) -> Any:
        """Send one request, wait, and return its result.

        Raises:
            Unusable: the answer cannot be used, or the server refuses the request.
            Cancelled: the run was stopped meanwhile.
            PipelineError: see `check`.
        """
        for _ in self.each([request], is_stopped):
            pass
        if request.error is not None:
            raise Unusable(request.error)
        return request.result

    def each(self, requests: list[Request], is_stopped: Callable[[], bool]) -> Iterator[Request]:
        """Send `requests`, and those that are added to it meanwhile; yield each when it is answered or given up. Raises
        Cancelled and PipelineError as `ask` does."""
        ended: SimpleQueue[Request] = SimpleQueue()
        left = 0
        while requests or left:
            for request in requests:
                request.ended = ended.put
            self.submit(requests.copy())
            left += len(requests)
            requests.clear()
            try:
                request = ended.get(timeout=_TICK_S)
            except Empty:
                self.check()
                if is_stopped():
                    raise Cancelled from None
                continue
            self.check()
            left -= 1
            yield request

    def check(self) -> None:
        """Raise what ends the run, if something does: ConfigError or EndpointError."""
        if self._failure is not None:
            raise self._failure

    def fail(self, error: Exception) -> None:
        """End the run by `error`: nothing more is sent. May be called from any thread."""
        if self._failure is None:
            is_known = isinstance(error, PipelineError)
            self._failure = error if is_known else EndpointError(f"{type(error).__name__}: {error}")  # type: ignore[assignment]

    @property
    def _stops(self) -> bool:
        """Whether nothing more is sent."""
        return self._failure is not None or self._leaving

    @property
    def active(self) -> int:
        """Requests in flight."""
        return len(self._tasks)

    def status(self) -> str:
        """Return requests in flight and their limit, for the progress line."""
        held_s = self._routes.held_s
        down = f", waiting {held_s:.0f} s as the server asks" if held_s >= 1 else ", waiting for the server"
        return f"{self.active}/{self._routes.limit} requests{down if held_s >= 1 or self._patience.is_short else ''}"

    def leave(self, owner: object) -> None:
        """Drop the requests of `owner` that were not sent, and end those under way after a moment."""
        self._call(self._end(lambda request: request.owner is owner, _GRACE_S))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` in the endpoint's thread, from which alone this may be called, when so much time has passed."""
        self._loop.call_later(seconds, call)

    def cut_off(self) -> None:
        """End all requests at once. May be called from any thread."""
        self._leaving = True
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in list(self._tasks)])

    def close(self) -> None:
        """End all requests, the connections and the thread."""
        self._leaving = True
        self._call(self._end(lambda request: True, 0.0))
        self._call(self._http.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    async def _connected(self) -> Http:
        return Http(self._settings)

    async def _end(self, is_meant: Callable[[Request], bool], grace_s: float) -> None:
        dropped = [request for request in self._waiting if is_meant(request)]
        self._waiting = deque(request for request in self._waiting if not is_meant(request))
        for request in [*dropped, *(each.request for each in self._refusals.drop(is_meant))]:
            self._finish(request, STOPPED)
        tasks = [task for task, request in self._tasks.items() if is_meant(request)]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _send(self, requests: Sequence[Request] = ()) -> None:
        """Begin as many requests as may be in flight; those of `requests` come last."""
        self._waiting.extend(requests)
        while self._waiting and len(self._tasks) < self._routes.limit:
            if self._stops:
                self._finish(self._waiting.popleft(), STOPPED)
                continue
            if self._refusals.is_wall:
                break
            wait_s = self._routes.held_s or self._pace.delay(self._waiting[0].tokens)
            if wait_s > 0:
                if self._later is None:
                    self._later = self._loop.call_later(wait_s, self._send_later)
                break
            self._begin(self._waiting.popleft())
        if self._refusals and not self._tasks and self._probe is None:
            self._settle()

    def _send_later(self) -> None:
        self._later = None
        self._send()

    def _begin(self, request: Request) -> None:
        task = self._loop.create_task(self._serve(request))
        self._tasks[task] = request
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._send()

    def _settle(self) -> None:
        """Decide on the requests that were given up, where none is under way."""
        if self._refusals.is_wall and not self._stops:
            if (wait_s := self._refusals.next_try_s()) is not None:
                self._patience.say(self._refusals.last_error)
                self._probe = self._loop.call_later(wait_s, self._try_again)
                return
        elif self._waiting:
            return
        if self._failure is None:
            self._failure = self._refusals.ending()
        for given_up in self._refusals.take():
            self._finish(given_up.request, given_up.error)
        self._send()

    def _try_again(self) -> None:
        """Send a request that was given up once more, to see whether the server answers again."""
        self._probe = None
        if (request := self._refusals.pop()) is not None:
            request.failures = self._settings.retries
            self._begin(request)
        self._send()

    def _finish(self, request: Request, error: str | None) -> None:
        request.error, request.ended_s = error, time.perf_counter()
        try:
            request.done(request)
        except Exception as failed:  # it must not be lost in a task that nobody looks at
            self._log.debug("an answer cannot be taken", exc_info=True)
            self.fail(failed)
        request.ended(request)

    async def _serve(self, request: Request) -> None:
        """Send `request` until it is answered or given up."""
        hidden = [*request.secrets(), *self._settings.secrets()]
        error: str | None = None
        given_up: GivenUp | None = None
        is_believed = request.optional or request.is_group  # as are what is of the row, and what was never sent
        try:
            await self._tried(request, hidden)
        except Unusable as refused:
            given_up = GivenUp(request, without(str(refused), hidden))
            request.is_unsent = isinstance(refused, NotSent)
            is_believed = is_believed or request.is_unsent or isinstance(refused, OfRow)
            if isinstance(refused, OfRow):
                self._believe(self._refusals.answered())
        except Again as failed:
            tries = f"{failed.reason}, in {request.tries} {'try' if request.tries == 1 else 'tries'}"
            given_up = GivenUp(request, without(tries, hidden), clean(failed.ends, hidden), failed.ends is None)
        except asyncio.CancelledError:
            error = STOPPED
        except Exception as failure:
            if not isinstance(failure, PipelineError):
                self._log.debug("a request failed", exc_info=True)
            self.fail(clean(failure, hidden))
            error = str(self._failure)
        if given_up is not None:
            if not (is_believed or self._stops) and self._refusals.add(given_up):
                return
            error = given_up.error
        self._finish(request, error)

    def _believe(self, given_up: Sequence[GivenUp]) -> None:
        """Make rejects of requests that were given up, or give them what is left of their tries, and one more where
        several were given up at a time: that looks as if the server had been at fault."""
        for each in given_up:
            request, has_tries = each.request, each.request.failures <= self._settings.retries
            if (has_tries or (len(given_up) > 1 and not request.is_extra)) and request.may_be_taken(self._routes.all):
                request.is_extra = not has_tries
                self._waiting.appendleft(request)
            else:
                self._finish(request, each.error)

    async def _tried(self, request: Request, hidden: list[str]) -> None:
        """Send `request` until it is answered, and set its result. Raises what its last try has raised."""
        self._patience.begin(request)
        for number in count():
            try:
                route = await self.attempts.make(request)
                break
            except Again as failed:
                if self._stops:
                    raise
                wait_s = pause_s(number, failed, self._patience.left_s(request, failed, hidden))
            await asyncio.sleep(wait_s)
        tokens, completion_tokens = request.tokens_of(request.result)
        self._pace.correct(request.tokens, tokens)
        route.limit.answered(time.perf_counter() - request.sent_s, completion_tokens)
        self._patience.answered()
        if not request.optional:
            self._believe(self._refusals.answered())
