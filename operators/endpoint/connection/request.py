"""Request: one request to a server, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from operators.endpoint.connection.routes import Route


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
        tokens_of: returns the tokens that a result used, and how many of them it made.
    """

    owner: object
    path: str
    body: bytes | None
    read: Callable[[Any], Any]
    done: Callable[[Request], None] = lambda request: None
    tokens: int = 0
    secrets: Callable[[], list[str]] = list
    tokens_of: Callable[[Any], tuple[int, int]] = lambda result: (0, 0)
    optional: bool = False
    is_group: bool = False
    result: Any = None
    error: str | None = None
    """Why its row is a reject."""
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

    def then(self, call: Callable[[Request], None]) -> None:
        """Have `call` called, too, after `done` and whatever that raises."""
        done = self.done

        def both(request: Request) -> None:
            try:
                done(request)
            finally:
                call(request)

        self.done = both

    def may_be_taken(self, routes: Iterable[Route]) -> bool:
        """Return whether one of `routes` has not refused the request for good."""
        return any(route not in self.refused_by for route in routes)
