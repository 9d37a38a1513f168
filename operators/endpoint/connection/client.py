"""Endpoint: sends the requests of all nodes to the servers of a model, from a thread with an event loop of its own.

A request that fails on its own account is sent again `model.retries` times, and its row is a reject then. What is the
fault of the server (nobody answers, too many requests) does not count: the run waits, and ends after
`model.patience_s` without a single answer.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from logging import Logger
from typing import Any, TypeVar

from operators.endpoint.api.answers import Unusable
from operators.endpoint.connection.concurrency import Adaptive, Fixed, Pace
from operators.endpoint.connection.http import Http, NoAnswer, Unreachable, require_client
from operators.endpoint.connection.request import Request
from operators.endpoint.connection.retrying import retrying
from operators.endpoint.connection.routes import Routes
from operators.endpoint.connection.verdict import Again, EndpointError, NoSuchApi, Refused, judge, without
from operators.settings.endpoint import AUTO, EndpointSettings
from pipeline.api.errors import Cancelled, PipelineError

T = TypeVar("T")
_SAID_AFTER_S = 2.0
_TICK_S = 0.1
STOPPED = "the run was stopped"
_TOO_LONG = "it asks for %g s (Retry-After), more than model.patience_s=%g leaves"
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
        self._routes = Routes(settings.urls)
        self._limit = (
            Adaptive(longest_s=settings.timeout_s) if settings.concurrency == AUTO else Fixed(settings.concurrency)
        )
        self._pace = Pace(settings.requests_per_minute, settings.tokens_per_minute)
        self._waiting: deque[Request] = deque()
        self._tasks: dict[asyncio.Task[None], Request] = {}
        self._later: asyncio.TimerHandle | None = None
        self._hold_until = 0.0
        self._down_since: float | None = None
        self._answers = 0
        self._said_down = self._said_model = False
        self._failure: PipelineError | None = None
        self._leaving = False
        self.model: str | None = None
        """The model's id, to compare with that of the answers; None while it is not known."""
        self.requests = self.retries = 0
        """Requests that were sent, and those of them that were sent again."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="endpoint", daemon=True)
        self._thread.start()
        self._http = self._call(self._connected())

    def submit(self, requests: Sequence[Request]) -> None:
        """Send `requests`, in their order as far as their number in flight and the limits allow. `done` of each is
        called in the endpoint's thread, also for those that fail."""
        self._loop.call_soon_threadsafe(self._take, requests)

    def ask(self, request: Request, is_stopped: Callable[[], bool]) -> Any:
        """Send one request, wait, and return its result.

        Raises:
            Unusable: the answer cannot be used, or the server refuses the request.
            Cancelled: the run was stopped meanwhile.
            PipelineError: see `check`.
        """
        answered: Future[None] = Future()
        request.done = lambda request: answered.set_result(None)
        self.submit([request])
        while not answered.done():
            if is_stopped():
                raise Cancelled
            wait([answered], timeout=_TICK_S)
        self.check()
        if request.error is not None:
            raise Unusable(request.error)
        return request.result

    def check(self) -> None:
        """Raise what ends the run, if something does: ConfigError or EndpointError."""
        if self._failure is not None:
            raise self._failure

    @property
    def active(self) -> int:
        """Requests in flight."""
        return len(self._tasks)

    def status(self) -> str:
        """Return requests in flight and their limit, for the progress line."""
        down = ", waiting for the server" if self._said_down else ""
        return f"{self.active}/{self._limit.limit} requests{down}"

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
        for request in dropped:
            self._finish(request, STOPPED)
        tasks = [task for task, request in self._tasks.items() if is_meant(request)]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _take(self, requests: Sequence[Request]) -> None:
        self._waiting.extend(requests)
        self._send()

    def _send(self) -> None:
        """Begin as many requests as may be in flight."""
        while self._waiting and len(self._tasks) < self._limit.limit:
            if self._failure is not None or self._leaving:
                self._finish(self._waiting.popleft(), STOPPED)
                continue
            wait_s = self._hold_until - time.monotonic()
            wait_s = wait_s if wait_s > 0 else self._pace.delay(self._waiting[0].tokens)
            if wait_s > 0:
                if self._later is None:
                    self._later = self._loop.call_later(wait_s, self._send_later)
                return
            request = self._waiting.popleft()
            task = self._loop.create_task(self._serve(request))
            self._tasks[task] = request
            task.add_done_callback(self._ended)

    def _send_later(self) -> None:
        self._later = None
        self._send()

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._send()

    def _finish(self, request: Request, error: str | None) -> None:
        request.error, request.ended_s = error, time.perf_counter()
        request.done(request)

    async def _serve(self, request: Request) -> None:
        """Send `request` until it is answered or given up."""
        error: str | None = None
        try:
            await retrying(lambda: self._try(request), self._time_left(request))
        except (Refused, Unusable) as refused:
            error = without(str(refused), self._hidden(request))
        except Again as failed:
            error = without(f"{failed.reason}, in {request.tries} tries", self._hidden(request))
        except asyncio.CancelledError:
            error = STOPPED
        except PipelineError as failure:
            failure.args = (without(str(failure), self._hidden(request)), *failure.args[1:])
            error = str(failure)
            if not (isinstance(failure, NoSuchApi) and request.optional):
                self._failure = self._failure or failure
        except Exception as unexpected:  # it must not be lost in a task that nobody looks at
            self._failure = self._failure or EndpointError(f"{type(unexpected).__name__}: {unexpected}")
            error = str(self._failure)
            self._log.debug("a request failed", exc_info=True)
        self._finish(request, error)

    def _time_left(self, request: Request) -> Callable[[Again], float]:
        """Return the rule that says, after a failure of `request`, in how many seconds its next try must have begun.

        The rule raises Again where the request has no try left, and EndpointError where the server has no time left.
        """
        answers = self._answers

        def rule(failed: Again) -> float:
            nonlocal answers
            now, patience = time.monotonic(), self._settings.patience_s
            request.failing_since = request.failing_since or now
            if self._failure is not None or self._leaving:
                raise failed
            if failed.of_server and (failed.busy or answers == self._answers):
                left_s = self._patience_left(failed, now, self._hidden(request))
                if now - request.failing_since > max(patience, self._settings.timeout_s):
                    raise failed
                return left_s
            if failed.of_server:  # others are answered, so this request may be at fault
                answers = self._answers
            request.failures += 1
            if request.failures > self._settings.retries:
                raise failed
            if failed.asks_longer_than(request.failing_since + patience - now):
                raise Again(f"{failed.reason}; {_TOO_LONG % (failed.after_s, patience)}")
            return math.inf

        return rule

    def _patience_left(self, failed: Again, now: float, hidden: list[str]) -> float:
        """Return the seconds that the servers have until one of them must have answered.

        Raises:
            EndpointError: they have passed, or are fewer than the server asks for.
        """
        patience = self._settings.patience_s
        self._down_since = self._down_since or now
        self._say_waiting(now - self._down_since, without(failed.reason, hidden))
        left_s = self._down_since + patience - now
        why = f"no request was answered for model.patience_s={patience:g} s" if left_s < 0 else None
        if why is None and failed.asks_longer_than(left_s):
            why = _TOO_LONG % (failed.after_s, patience)
        if why is not None:
            raise EndpointError(f"{failed.reason}; {why}. What is answered is kept, and the same command goes on")
        return left_s

    def _hidden(self, request: Request) -> list[str]:
        """Return the texts that no message about `request` may quote."""
        return [*request.secrets(), *self._settings.secrets()]

    async def _try(self, request: Request) -> None:
        """Send `request` once, and set its result."""
        route, wait_s = self._routes.choose()
        while wait_s > 0:
            await asyncio.sleep(wait_s)
            route, wait_s = self._routes.choose()
        route.active += 1
        request.tries += 1
        self.requests += 1
        self.retries += request.tries > 1
        request.sent_s = time.perf_counter()
        where = f"the server {route.name}"
        try:
            url = route.url + request.path
            reply = await self._http.ask(url, request.body, where)
            self._routes.answered(route)
            judge(reply.status, reply.headers, reply.body, where, url)
            body = _json(reply.body, where)
            request.result = request.read(body)
            self._compare(body)
        except Again as failed:
            if isinstance(failed, Unreachable):
                self._routes.failed(route)
            if failed.busy or isinstance(failed, NoAnswer) or not self._routes.has_one:
                self._limit.refused()
            if failed.busy:
                hold_s = min(failed.after_s or 0.0, self._settings.patience_s)
                self._hold_until = max(self._hold_until, time.monotonic() + hold_s)
            raise
        finally:
            route.active -= 1
        self._answered(request)

    def _answered(self, request: Request) -> None:
        used, made = request.tokens_of(request.result)
        self._pace.correct(request.tokens, used)
        self._limit.answered(time.perf_counter() - request.sent_s, made)
        self._answers += 1
        self._down_since = None
        if self._said_down:
            self._said_down = False
            self._log.info("the server answers again")

    def _compare(self, body: Any) -> None:
        """Say once if an answer is of another model than the one that was asked for."""
        told = body.get("model") if isinstance(body, dict) else None
        if self.model is not None and told != self.model and isinstance(told, str) and told and not self._said_model:
            self._said_model = True
            self._log.warning("%r was asked for, and the server says that %r answers: an alias?", self.model, told)

    def _say_waiting(self, seconds: float, reason: str) -> None:
        if seconds >= _SAID_AFTER_S and not self._said_down:
            self._said_down = True
            self._log.warning("%s; waiting for up to model.patience_s=%g s", reason, self._settings.patience_s)


def _json(body: bytes, where: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Again(f"{where} answers with {len(body):,} bytes that are no JSON") from None
