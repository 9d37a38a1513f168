"""Waits between the tries of a request: exponential ones with jitter, or what the server asks for, until a deadline."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import count

from operators.endpoint.connection.verdict import Again

_FIRST_S, _LONGEST_S = 0.25, 30.0
_DOUBLINGS = 7
"""From the first wait to more than the longest."""


async def retrying(attempt: Callable[[], Awaitable[None]], time_left: Callable[[Again], float]) -> None:
    """Call `attempt` until it succeeds.

    Args:
        time_left: returns, after a failure, in how many seconds the next try must have begun, which is not less than
            the server asks for; it raises what ends the tries. A busy server is left alone by all, see Routes.
    """
    for number in count():
        try:
            await attempt()
            return
        except Again as failed:
            left_s = time_left(failed)
            wait_s = random.uniform(0, min(_FIRST_S * 2 ** min(number, _DOUBLINGS), _LONGEST_S))
            if failed.after_s is not None and not failed.busy:  # jitter, so that not all who wait come at once
                wait_s = failed.after_s + min(wait_s, 1.0)
        await asyncio.sleep(min(wait_s, left_s))
