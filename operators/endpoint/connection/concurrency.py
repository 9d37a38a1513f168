"""Limits on requests: how many are in flight, and how many a minute may hold. Plain objects for one thread.

`Fixed` and `Adaptive` say how many; both hear of every answer and of every refusal (429 or 503).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from math import sqrt
from statistics import fmean, median, pstdev

Clock = Callable[[], float]
"""Seconds since any moment, which never go back."""
FIRST = 4
"""Requests in flight at the start."""
WINDOW_S = 1.0
"""The least time over which throughput is measured."""
GAIN = 0.05
"""A level pays that raises throughput by this share, beyond twice the standard error of its window."""
LINEAR = 0.8
"""Throughput that rose by this share of the rise of the limit is far from its plateau: the next step is larger."""
STARVED = 0.5
"""Where fewer than this share of the limit were in flight, rows were missing, and the window says nothing of it."""
MOST_ANSWERS = 16
"""A window has at most so many times the limit where answers never pause as they once did."""
PATIENCE = 8, 64
"""Windows on a plateau before the next look, and the most of them: each look that does not pay doubles them."""
REMEMBER_S = 60.0
"""How long a level that was refused stays out of reach."""
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


class _Phase(Enum):
    GROW = auto()
    """The limit was multiplied, and pays or goes back."""
    STAY = auto()
    """On the plateau."""
    LOOK = auto()
    """A step beyond the plateau, which pays or goes back."""
    CLIMB = auto()
    """By steps to below the level that was refused."""


@dataclass
class _Level:
    limit: int
    rate: float


@dataclass
class _Window:
    began_s: float
    last_s: float
    """The time of the last answer."""
    tokens: int = 0
    seconds: list[float] = field(default_factory=list)
    widest_s: float = 0.0
    """The longest pause between answers."""

    def add(self, now: float, seconds: float, tokens: int) -> None:
        self.widest_s, self.last_s = max(self.widest_s, now - self.last_s), now
        self.seconds.append(seconds)
        self.tokens += tokens

    def holds(self, limit: int) -> bool:
        return len(self.seconds) >= limit and self.last_s - self.began_s >= WINDOW_S

    @property
    def rate(self) -> float:
        return (self.tokens or len(self.seconds)) / (self.last_s - self.began_s)

    @property
    def in_flight(self) -> float:
        return sum(self.seconds) / (self.last_s - self.began_s)

    @property
    def error(self) -> float:
        """The standard error of the mean latency, as a share of it."""
        return pstdev(self.seconds) / fmean(self.seconds) / sqrt(len(self.seconds))


class Adaptive:
    """Finds the number of requests in flight from the throughput of whole windows, `limit` answers or a multiple each.

    It multiplies the limit while that pays, then stays, and looks beyond from time to time. Throughput is completion
    tokens per second, or answers where there are none. A refusal halves the limit, though not below a level that was
    not refused when it was last tried; from there it climbs by an eighth a window up to what was refused.
    The limit never rises so far that the median latency could pass half of `longest_s`, the timeout of a request.
    """

    def __init__(self, most: int = 1024, longest_s: float = 600.0, clock: Clock = time.monotonic) -> None:
        self.limit = min(FIRST, most)
        self._most, self._longest_s, self._clock = most, longest_s, clock
        self._phase = _Phase.GROW
        self._window: _Window | None = None
        self._judged = False
        """Whether a window of this level was found not to pay. A second one decides."""
        self._base: _Level | None = None
        """The level to go back to. Its rate is a moving average while it stays."""
        self._typical_s = WINDOW_S
        """The median latency of the last window."""
        self._patience = self._left = PATIENCE[0]
        self._proven = 0
        """The level of the last window, if there was no refusal since."""
        self._refused_level, self._refused_s = most + 1, float("-inf")

    def answered(self, seconds: float, tokens: int) -> None:
        """Count an answer that took `seconds` and has so many completion tokens."""
        now, seconds = self._clock(), max(seconds, SHORTEST_S)
        if now - seconds < self._refused_s:  # sent before the limit was lowered
            return
        window = self._window or _Window(now - seconds, now - seconds)
        # Requests sent together come back together: a window ends before a pause, or part of a burst is missing.
        pauses = now - window.last_s >= window.widest_s / 2 or len(window.seconds) >= MOST_ANSWERS * self.limit
        if window.holds(self.limit) and pauses:
            window = self._judge(window)
        window.add(now, seconds, tokens)
        # Where little depends on it, a window ends when all who were sent together must have come.
        if window.holds(self.limit) and len(window.seconds) % self.limit == 0 and self._hurries(window):
            window = self._judge(window)
        self._window = window

    def refused(self) -> None:
        """Halve the limit, once for refusals that come within the time of one request."""
        now = self._clock()
        self._window = None
        since_s = now - self._refused_s
        if since_s < self._typical_s:
            return
        if self._proven or since_s >= REMEMBER_S:  # else a server that is away, which says nothing of the level
            self._refused_level = self.limit
        self._refused_s = now
        self._proven = self._proven if self._proven < self.limit else 0
        self.limit = max(1, self.limit // 2, self._proven)
        self._phase = _Phase.CLIMB

    def _hurries(self, window: _Window) -> bool:
        return self._base is None or self._phase is _Phase.CLIMB or (self._phase is _Phase.GROW and self._pays(window))

    def _pays(self, window: _Window) -> bool:
        return self._base is None or window.rate >= self._base.rate * (1 + GAIN + 2 * window.error)

    def _judge(self, window: _Window) -> _Window:
        """Move to the next level or stay, and return the next window."""
        self._typical_s = median(window.seconds)
        if window.in_flight >= STARVED * self.limit:
            self._proven = self.limit
            self._move(_Level(self.limit, window.rate), self._pays(window))
        return _Window(window.last_s, window.last_s)

    def _move(self, here: _Level, pays: bool) -> None:
        base = self._base
        if self._phase is _Phase.CLIMB:
            self._base = here
            phase = _Phase.CLIMB if self._ceiling < self._most else _Phase.LOOK
            self._step(phase, self.limit + max(1, self._refused_level // 16))
        elif base is None:
            self._base = here
            self._step(_Phase.GROW, 4 * self.limit)
        elif self._phase is _Phase.STAY:
            base.rate += (here.rate - base.rate) / 4
            self._left -= 1
            if self._left <= 0:
                self._step(_Phase.LOOK, self.limit + max(1, self.limit // 4))
        elif pays:
            self._base, self._patience = here, PATIENCE[0]
            linear = here.rate / base.rate >= LINEAR * here.limit / base.limit
            self._step(_Phase.GROW, self.limit * (4 if linear else 2))
        elif not self._judged:  # the last requests of those that came with the rise may be missing
            self._judged = True
        else:
            self.limit = base.limit
            self._patience = min(2 * self._patience, PATIENCE[1])
            self._stay()

    @property
    def _ceiling(self) -> int:
        remembered = self._clock() - self._refused_s < REMEMBER_S
        return min(self._most, self._refused_level - 1) if remembered else self._most

    def _step(self, phase: _Phase, level: int) -> None:
        """Raise the limit to `level`, or as far as it may go."""
        slower = self._longest_s / 2 / self._typical_s
        """By how much a request may become slower. Beyond the plateau that is the rise of the limit."""
        level = min(level, int(self.limit * slower), self._ceiling)
        if level > self.limit and slower >= 2:
            self._phase, self.limit, self._judged = phase, level, False
        else:
            self._stay()

    def _stay(self) -> None:
        self._phase, self._left = _Phase.STAY, self._patience


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


class Pace:
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
