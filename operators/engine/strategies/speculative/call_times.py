"""CallTimes: the measured times of steps, by the sizes of their calls."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import inf

MEASURED_STEPS = 4
"""Steps in succession with calls of one size after which its time counts as measured."""
STALE_STEPS = 1000
"""Steps after which a size is measured again."""
_SWITCH_WEIGHT = 0.1
"""Weight of a step in the running mean of what it costs to change the size of calls."""


class StepTime:
    """Seconds of a step of some size: of its latest ones the lower quartile, which other work on the machine hardly
    moves.

    Attributes:
        noted: number of the latest among all steps.
    """

    __slots__ = ("_latest", "noted", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.noted = 0
        self._latest = deque[float](maxlen=2 * MEASURED_STEPS)

    @property
    def is_measured(self) -> bool:
        return len(self._latest) >= MEASURED_STEPS

    def note(self, seconds: float, step: int) -> None:
        """Record a step."""
        if step - self.noted > STALE_STEPS:
            self._latest.clear()
        self._latest.append(seconds)
        self.seconds = sorted(self._latest)[len(self._latest) // 4]
        self.noted = step


class CallTimes:
    """Seconds of a step by its rows and the tokens of each, as they were measured.

    Attributes:
        switch_s: what a step costs more after one of another size.
        steps: number of steps that were recorded.
    """

    def __init__(self) -> None:
        self.switch_s = 0.0
        self.steps = 0
        self._times: dict[tuple[int, int], StepTime] = {}
        self._sizes: list[tuple[int, tuple[int, int]]] = []
        self._last: tuple[int, int] | None = None

    def note(self, rows: int, tokens: int, seconds: float) -> None:
        """Record a step with `tokens` of each of `rows` rows."""
        key, last = (rows, tokens), self._last
        self._last = key
        self.steps += 1
        time = self._times.get(key)
        if time is None:
            self._times[key] = StepTime(seconds)
            insort(self._sizes, (rows * tokens, key))
        elif key == last:
            time.note(seconds, self.steps)
        elif time.is_measured:
            more = min(max(0.0, seconds - time.seconds), time.seconds)
            self.switch_s += _SWITCH_WEIGHT * (more - self.switch_s)

    def interrupted(self) -> None:
        """Note that the next step follows one that is not recorded."""
        self._last = None

    def is_measured(self, rows: int, tokens: int) -> bool:
        """Return True if this size was measured often, and not long ago."""
        time = self._times.get((rows, tokens))
        return time is not None and time.is_measured and self.steps - time.noted <= STALE_STEPS

    def on_trial(self, rows: int) -> int:
        """Return the tokens of each of `rows` rows in the last step, if that size is not measured often enough; else
        0."""
        last = self._last
        return last[1] if last and last[0] == rows and not self.is_measured(*last) else 0

    def switching(self, rows: int, tokens: int) -> float:
        """Return the seconds that a step of this size costs more now."""
        return 0.0 if self._last in (None, (rows, tokens)) else self.switch_s

    def bounds(self, rows: int, tokens: int) -> tuple[float, float]:
        """Return the least and the most that a step takes: equal where it was measured often and not long ago, or lies
        between two sizes that were. Else it takes no less than a smaller one. A token beyond the largest size costs at
        most what it does there."""
        time = self._times.get((rows, tokens))
        if time is not None and self.is_measured(rows, tokens):
            return time.seconds, time.seconds
        size = rows * tokens
        at = bisect_left(self._sizes, (size, (0, 0)))
        below = self._at(at - 1) if at else 0.0
        if time is not None:
            return min(below, time.seconds), time.seconds
        if at == len(self._sizes):
            return below, below * size / self._sizes[-1][0] if at else inf
        above, high = self._at(at), self._sizes[at][0]
        if not at or high == size:
            return above, above
        low = self._sizes[at - 1][0]
        seconds = below + (above - below) * (size - low) / (high - low)
        return seconds, seconds

    def _at(self, place: int) -> float:
        return self._times[self._sizes[place][1]].seconds
