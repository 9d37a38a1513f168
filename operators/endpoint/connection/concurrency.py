"""Limits on requests: how many are in flight, and how many a minute may hold. Plain objects for one thread.

`Fixed` and `Adaptive` say how many; both hear of every answer and of every refusal.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]
"""Seconds since any moment, which never go back."""
FIRST = 4
"""Requests in flight at the start."""
WINDOW_S = 0.5
"""The least time over which throughput is measured."""
GAIN = 0.06
"""A limit that has doubled pays if throughput has risen by this share. Less is noise in windows of some 16 answers."""
IN_USE = 0.5
"""Where fewer than this share of the limit were in flight, rows were missing, and a window says nothing."""
REMEMBER_S = 60.0
"""How long a limit that was refused, or did not pay, stays out of reach: rows and servers change."""
MINUTE_S = 60.0
BURST_S = 3.0
"""What a pace may send ahead of an even flow."""
SHORTEST_S = 0.001
"""Larger than the error of the clock's floating point, so that a wait always ends."""


@dataclass
class Fixed:
    """A number of requests in flight that stays as it is."""

    limit: int

    def answered(self, seconds: float, tokens: int) -> None:
        """Do nothing."""

    def refused(self) -> None:
        """Do nothing."""


class Adaptive:
    """Finds the number of requests in flight by additive increase and multiplicative decrease (Chiu and Jain 1989,
    Analysis of the Increase and Decrease Algorithms), in windows of `limit` answers or a multiple.

    A refusal halves the limit, once a round trip; what was refused is out of reach for REMEMBER_S, since a refusal
    costs a round trip, and limits of servers do not change by the second. Up to the first halving the limit doubles, as
    in TCP's slow start, and above that it rises by one. It rises only while rows fill it, and while requests would take
    less than half of `longest_s`, their timeout.

    A server with a queue refuses nothing: llama-server with 4 slots would be given hundreds of requests, which wait
    until they time out. So a limit that has doubled and brings less than GAIN more throughput (completion tokens, or
    answers where there are none) counts as refused, and goes back. That leaves up to some four times the slots in
    flight. Latencies would say the same only for rows of one length.
    """

    def __init__(self, most: int = 1024, longest_s: float = 600.0, clock: Clock = time.monotonic) -> None:
        self.limit = min(FIRST, most)
        self._most, self._longest_s, self._clock = most, longest_s, clock
        self._threshold = most
        """Where doubling ends."""
        self._paid_limit, self._paid_rate = 0, 0.0
        """The last limit that paid, and its throughput."""
        self._ceiling, self._ceiling_until = most, -math.inf
        self._refused_s = -math.inf
        self._round_trip_s = WINDOW_S
        self._begin(clock())

    def _begin(self, now: float) -> None:
        """Begin a window."""
        self._began_s, self._answers, self._tokens, self._seconds = now, 0, 0, 0.0

    def answered(self, seconds: float, tokens: int) -> None:
        """Count an answer that took `seconds` and has so many completion tokens."""
        now = self._clock()
        if now - seconds < self._refused_s:  # sent before the limit was halved
            return
        self._answers, self._tokens, self._seconds = self._answers + 1, self._tokens + tokens, self._seconds + seconds
        took_s = now - self._began_s
        if self._answers % self.limit == 0 and took_s >= WINDOW_S:  # what was sent together comes back together
            self._round_trip_s = self._seconds / self._answers
            if self._seconds / took_s >= IN_USE * self.limit:
                self._judge(now, (self._tokens or self._answers) / took_s)
            self._begin(now)

    def refused(self) -> None:
        """Halve the limit, once a round trip."""
        now = self._clock()
        if now - self._refused_s < self._round_trip_s:
            return
        is_away = not self._answers and self._began_s == self._refused_s  # nothing was answered since the last refusal
        if not is_away:  # else it says nothing of the limit
            self._threshold = max(1, self.limit // 2)
            self._ceiling, self._ceiling_until = self.limit - 1, now + REMEMBER_S
        self.limit = max(1, self.limit // 2)
        self._refused_s = now
        self._paid_limit, self._paid_rate = 0, 0.0
        self._begin(now)

    def _judge(self, now: float, rate: float) -> None:
        """Set the limit after a window with the throughput `rate`."""
        if self.limit >= 2 * self._paid_limit:
            if rate < self._paid_rate * (1 + GAIN):
                self.limit = self._ceiling = self._paid_limit
                self._ceiling_until = now + REMEMBER_S
                return
            self._paid_limit, self._paid_rate = self.limit, rate
        level = min(2 * self.limit, max(self._threshold, self.limit + 1), self._most)
        if now < self._ceiling_until:
            level = min(level, self._ceiling)
        if level > self.limit and self._round_trip_s * level / self.limit <= self._longest_s / 2:
            self.limit = level
        elif self.limit == self._paid_limit:  # rows change
            self._paid_rate += (rate - self._paid_rate) / 4


class _Budget:
    """An amount per minute: an even flow with a burst (GCRA), and what the last 60 seconds hold."""

    def __init__(self, per_minute: float) -> None:
        self._per_minute = per_minute
        self._even_s = float("-inf")
        """When an even flow would have sent all that is booked."""
        self._booked: deque[tuple[float, float]] = deque()
        """Time and amount of what is less than a minute old."""
        self._held = 0.0

    def wait_s(self, now: float, amount: float) -> float:
        """Return the time until `amount` may be sent. What is more than a minute's waits for an empty minute."""
        while self._booked and self._booked[0][0] + MINUTE_S <= now:
            self._held -= self._booked.popleft()[1]
        until, held = self._even_s - BURST_S, self._held
        for then, booked in self._booked:
            if held + amount <= self._per_minute:
                break
            until, held = max(until, then + MINUTE_S), held - booked
        return max(SHORTEST_S, until - now) if until > now else 0.0

    def book(self, now: float, amount: float) -> None:
        """Count `amount` as sent. A negative one is given back from the oldest, which is gone first."""
        self._even_s = max(self._even_s, now) + amount * MINUTE_S / self._per_minute
        self._held += amount
        if amount > 0:
            self._booked.append((now, amount))
        while amount < 0 and self._booked:
            then, booked = self._booked.popleft()
            amount += booked
            if amount > 0:
                self._booked.appendleft((then, amount))
        if amount < 0:
            self._held = 0.0


class RateLimit:
    """Requests and tokens per minute, in an even flow: never more than that within any 60 seconds. None is no limit."""

    def __init__(
        self, requests_per_minute: float | None, tokens_per_minute: float | None, clock: Clock = time.monotonic
    ) -> None:
        self._clock = clock
        self._requests = _Budget(requests_per_minute) if requests_per_minute else None
        self._tokens = _Budget(tokens_per_minute) if tokens_per_minute else None

    def delay(self, tokens: int) -> float:
        """Book a request of an estimate of `tokens` and return 0.0, or the seconds to wait before asking again."""
        now = self._clock()
        amounts = [(b, a) for b, a in ((self._requests, 1), (self._tokens, tokens)) if b]
        wait_s = max((budget.wait_s(now, amount) for budget, amount in amounts), default=0.0)
        if not wait_s:
            for budget, amount in amounts:
                budget.book(now, amount)
        return wait_s

    def correct(self, estimated: int, used: int) -> None:
        """Give back what was booked too much for a request, or book the rest."""
        if self._tokens:
            self._tokens.book(self._clock(), used - estimated)
