"""Waits between the tries of a request: tenacity's exponential ones with jitter, or what the server asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from operators.endpoint.connection.verdict import Again

if TYPE_CHECKING:
    from tenacity import RetryCallState
    from tenacity.wait import wait_base

_FIRST_S, _LONGEST_S = 0.25, 30.0


async def retrying(first: Again, again: Callable[[], Awaitable[None]], may: Callable[[Again], bool]) -> None:
    """Call `again` until it succeeds, after the failure `first`.

    Args:
        may: returns whether to go on after a failure; it may raise what ends all.

    Raises:
        Again: the last failure, if it may not go on.
    """
    import tenacity

    failures = [first]

    async def attempt() -> None:
        if failures:
            raise failures.pop()
        await again()

    def fits(state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome else None
        return isinstance(error, Again) and may(error)

    tries = tenacity.AsyncRetrying(retry=fits, wait=_wait, reraise=True)
    await tries(attempt)


def _wait(state: RetryCallState) -> float:
    """Return the seconds before the next try; a server's wish is a lower bound, and jitter comes on top."""
    error: Any = state.outcome.exception() if state.outcome else None
    jitter: float = _exponential()(state)
    after_s = getattr(error, "after_s", None)
    return jitter if after_s is None else after_s + min(jitter, 1.0)


@cache
def _exponential() -> wait_base:
    from tenacity import wait_random_exponential

    return wait_random_exponential(multiplier=_FIRST_S, max=_LONGEST_S)
