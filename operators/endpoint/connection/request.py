"""Requests, and the URLs they are sent to: each with a limit. The least busy is taken; one that fails is left out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from operators.endpoint.connection.concurrency import Adaptive, Fixed
from operators.settings.endpoint import AUTO, EndpointSettings
from pipeline.system.redaction import shown_url

_FIRST_S, _LONGEST_S = 0.5, 30.0


@dataclass(slots=True, eq=False)
class Route:
    """A URL, with the requests that are under way there, and until when it is left out.

    Args:
        limit: how many requests it takes at a time.
        failures: since its last answer, or since the start.
        until: when it is tried again.
        held_until: what it asked for with Retry-After; an answer does not end that.
        takes_none: it said something that holds for all requests: it is down, busy or closed. Otherwise requests may
            be at fault, so it is only passed over while there are others.
        is_shut: it takes no request until the job is changed.
    """

    url: str
    limit: Adaptive | Fixed
    active: int = 0
    failures: int = 0
    until: float = 0.0
    held_until: float = 0.0
    takes_none: bool = False
    is_shut: bool = False

    @property
    def name(self) -> str:
        """Scheme, host and port."""
        return shown_url(self.url).removesuffix("/...")


@dataclass(slots=True, eq=False)
class Request:
    """A request, and what came of it.

    Args:
        owner: who asks; see Endpoint.leave.
        path: of the API, below the base URL.
        body: JSON; null gets `path`.
        read: makes the result of the response's JSON; raises Unusable.
        done: called in the endpoint's thread when it has a result or an error.
        tokens: estimate of prompt and completion tokens, for `model.tokens_per_minute`.
        secrets: texts that no message may quote.
        optional: a server that refuses it ends nothing, and its answer says nothing about rows.
        is_group: it is asked in parts if it is refused, so a refusal says nothing yet.
        filled: makes what is sent of `body`, each time that it is sent; it may take some time. None: `body` is sent.
        tokens_of: returns the tokens that a result used, and how many of them it made.
    """

    owner: object
    path: str
    body: bytes | None
    read: Callable[[Any], Any]
    done: Callable[[Request], None] = lambda request: None
    ended: Callable[[Request], None] = lambda request: None
    """Called after `done`, and whatever that raises."""
    tokens: int = 0
    secrets: Callable[[], list[str]] = list
    tokens_of: Callable[[Any], tuple[int, int]] = lambda result: (0, 0)
    optional: bool = False
    is_group: bool = False
    filled: Callable[[bytes], bytes] | None = None
    result: Any = None
    error: str | None = None
    """Why its row is a reject."""
    is_unsent: bool = False
    """What `filled` needs could not be had, so nothing was sent."""
    tries: int = 0
    failures: int = 0
    queued_s: float = field(default_factory=time.perf_counter)
    sent_s: float = 0.0
    """When it was sent the last time."""
    ended_s: float = 0.0
    is_extra: bool = False
    """It has had its tries, and one more."""
    failing_since: float = 0.0
    answers_before: int = 0
    """Answers to any request, when this one began to be sent, or failed last while others were answered."""
    failed_at: set[Route] = field(default_factory=set)
    refused_by: set[Route] = field(default_factory=set)
    """URLs that failed on it, and those of them that have refused it for good."""

    def may_be_taken(self, routes: Iterable[Route]) -> bool:
        """Return whether one of `routes` has not refused the request for good."""
        return any(route not in self.refused_by for route in routes)


class Routes:
    """Chooses among URLs. For one event loop.

    Args:
        settings: URLs of servers with the same model, and how many requests each takes at a time.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        many, longest_s = settings.concurrency, settings.timeout_s
        self.all = [Route(url, Adaptive(longest_s=longest_s) if many == AUTO else Fixed(many)) for url in settings.urls]
        self._changed = asyncio.Event()

    @property
    def limit(self) -> int:
        """How many requests may be under way: as many as the URLs take that answer, or that are not known yet."""
        limits = [route.limit for route in self.all if not route.failures] or [self.all[0].limit]
        return limits[0].limit if isinstance(limits[0], Fixed) else sum(each.limit for each in limits)

    @property
    def held_s(self) -> float:
        """Seconds for which every URL asked not to be sent anything."""
        return max(0.0, min(route.held_until for route in self.all) - time.monotonic())

    @property
    def are_shut(self) -> bool:
        """Whether each URL takes no request until the job is changed."""
        return all(route.is_shut for route in self.all)

    def choose(self, avoided: Collection[Route] = ()) -> tuple[Route, float]:
        """Return the URL to ask, and the seconds to wait before: 0, unless none takes requests.

        A URL that failed is asked by one request at a time until it answers.

        Args:
            avoided: URLs to take only if there is no other.
        """
        now = time.monotonic()
        free = [route for route in self.all if route.held_until <= now]
        found = [route for route in free if route.until <= now and not (route.failures and route.active)]
        if not found:
            found = [route for route in free if not route.takes_none]
        if found:
            return min(found, key=lambda route: (route in avoided, route.active / route.limit.limit, route.failures)), 0
        first = min(self.all, key=lambda route: max(route.until, route.held_until))
        wait_s = max(first.until, first.held_until) - now
        return first, wait_s if wait_s > 0 else _LONGEST_S  # the one request to it says more

    async def enter(self, avoided: Collection[Route] = ()) -> Route:
        """Wait until a URL can be asked, and return it, with one request more under way there."""
        route, wait_s = self.choose(avoided)
        while wait_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            route, wait_s = self.choose(avoided)
        route.active += 1
        return route

    def leave(self, route: Route) -> None:
        """Note that a request to `route` is over."""
        route.active -= 1
        self._changed.set()
        self._changed = asyncio.Event()

    def answered(self, route: Route) -> None:
        """Note that `route` answers."""
        route.failures, route.until, route.takes_none, route.is_shut = 0, 0.0, False, False

    def failed(self, route: Route, *, takes_none: bool, hold_s: float = 0.0) -> None:
        """Leave `route` out for 0.5, 1, 2 ... 30 seconds. What other requests to it find meanwhile counts once.

        Args:
            hold_s: how long it asks to be left alone.
        """
        now = time.monotonic()
        route.held_until = max(route.held_until, now + hold_s)
        route.takes_none = takes_none
        if route.until <= now:
            route.until = now + min(_FIRST_S * 2**route.failures, _LONGEST_S)
            route.failures = min(route.failures + 1, 16)
