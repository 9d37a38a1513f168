"""A server that answers in simulated time, and a client that keeps as many requests in flight as a policy says."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from operators.endpoint.connection.concurrency import Adaptive, Fixed

BACKOFF_S = 0.3
"""How long a refused request waits; it keeps its place."""


@dataclass
class Clock:
    """A clock that tests move."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def batching(full_at: int) -> Callable[[int], float]:
    """Return the speed of each of n requests on a server whose throughput nears that of `full_at` alone."""
    return lambda n: 1 / (1 + (n / full_at) ** 2) ** 0.5


@dataclass
class Server:
    """Serves up to `slots` requests at once, each at `speed(requests in service)`; others queue, or are refused.

    A request alone takes `seconds`, more or less by the share `noise`, and has a token for each hundredth of that.
    """

    seconds: float
    slots: int = 10_000
    speed: Callable[[int], float] = lambda n: 1.0
    refuses_above: int = 10_000
    noise: float = 0.0
    tokens: bool = True
    random: random.Random = field(default_factory=lambda: random.Random(7))


class Simulation:
    """Rows without end from a client to a server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.clock = Clock()
        self.served = 0.0
        """Seconds of work, in part of requests that are not yet done."""
        self.refusals = 0
        self.slowest_s = 0.0
        """The longest latency."""
        self._each = 0.0
        """Work that a request would have received that was in service from the start."""
        self._running: list[tuple[float, int, float, float]] = []
        """When done by that measure, number, when sent, and seconds of work."""
        self._queue: deque[tuple[float, float]] = deque()
        self._backing_off: list[float] = []
        self._number = 0

    def run(self, policy: Adaptive | Fixed, until: float) -> None:
        """Go on to the time `until`."""
        while True:
            self._send(policy)
            speed = self.server.speed(len(self._running)) if self._running else 1.0
            done = self.clock.now + (self._running[0][0] - self._each) / speed if self._running else float("inf")
            again = min(self._backing_off, default=float("inf"))
            then = min(done, again, until)
            self._each += (then - self.clock.now) * speed
            self.served += (then - self.clock.now) * speed * len(self._running)
            self.clock.now = then
            if then == until:
                return
            if again == then:
                self._backing_off.remove(again)
            else:
                _, _, sent, work = heapq.heappop(self._running)
                self.slowest_s = max(self.slowest_s, self.clock.now - sent)
                policy.answered(self.clock.now - sent, round(100 * work) if self.server.tokens else 0)

    def _send(self, policy: Adaptive | Fixed) -> None:
        server = self.server
        while len(self._running) + len(self._queue) + len(self._backing_off) < policy.limit:
            if len(self._running) + len(self._queue) >= server.refuses_above:
                self.refusals += 1
                self._backing_off.append(self.clock.now + BACKOFF_S * server.random.uniform(0.8, 1.2))
                policy.refused()
            else:
                work = server.seconds * server.random.uniform(1 - server.noise, 1 + server.noise)
                self._queue.append((self.clock.now, work))
        while self._queue and len(self._running) < server.slots:
            sent, work = self._queue.popleft()
            self._number += 1
            heapq.heappush(self._running, (self._each + work, self._number, sent, work))


class Makes(Protocol):
    """Something that makes a policy."""

    def __call__(self, *, clock: Clock) -> Adaptive | Fixed: ...


def throughput(server: Server, policy: Makes, after_s: float = 30.0, seconds: float = 10.0) -> float:
    """Return the work per second of so many seconds after the first `after_s`."""
    simulation = Simulation(server)
    made = policy(clock=simulation.clock)
    simulation.run(made, after_s)
    before = simulation.served
    simulation.run(made, after_s + seconds)
    return (simulation.served - before) / seconds
