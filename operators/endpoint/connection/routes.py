"""Routes: the URLs of a model's servers. The least busy is taken; one that does not answer is left out for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeline.system.redaction import shown_url

_FIRST_S, _LONGEST_S = 0.5, 30.0


@dataclass(slots=True)
class Route:
    """A URL, with the requests that are under way there, and until when it is left out."""

    url: str
    active: int = 0
    failures: int = 0
    until: float = 0.0
    name: str = field(init=False)
    """Scheme, host and port."""

    def __post_init__(self) -> None:
        self.name = shown_url(self.url).removesuffix("/...")


class Routes:
    """Chooses among URLs. For one event loop.

    Args:
        urls: of servers with the same model.
        clock: seconds.
    """

    def __init__(self, urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.all = [Route(url) for url in urls]
        self._clock = clock

    def choose(self) -> tuple[Route, float]:
        """Return the URL to ask, and the seconds to wait before: 0, unless all are left out."""
        now = self._clock()
        there = [route for route in self.all if route.until <= now]
        if there:
            return min(there, key=lambda route: (route.active, route.failures)), 0.0
        first = min(self.all, key=lambda route: route.until)
        return first, first.until - now

    @property
    def has_one(self) -> bool:
        """Whether a URL is not left out."""
        return self.choose()[1] == 0.0

    def answered(self, route: Route) -> None:
        """Note that `route` answers."""
        route.failures, route.until = 0, 0.0

    def failed(self, route: Route) -> None:
        """Leave `route` out for 0.5, 1, 2 ... 30 seconds. What other requests to it find meanwhile counts once."""
        now = self._clock()
        if route.until <= now:
            route.until = now + min(_FIRST_S * 2**route.failures, _LONGEST_S)
            route.failures = min(route.failures + 1, 16)
