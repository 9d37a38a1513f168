"""Pace: chooses how many drafted tokens the rows of a call bring, by what calls cost and how often drafts are right.

The choice changes no token of a text, only the time that it takes. All rows of a call bring equally many, since
llama.cpp cuts a batch into micro-batches of equal token counts.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence as Seq
from dataclasses import dataclass

TRIALS_SHARE = 0.01
"""Share of the time that calls of a size not yet measured may lose."""
IDLE_SHARE = 0.005
"""Share of the time for drafts that no call takes."""
MOST_REST = 16
"""Steps without drafts at most."""
_FIRST_RATE = 0.6
_RATE_STEP = 0.1
_FIRST = 4
"""Calls of a size of which the quickest counts; later ones move the estimate."""
_COST_STEP = 0.1
_OUTLIER = 2.0


@dataclass(slots=True)
class Bid:
    """The tokens that a row would bring.

    Args:
        known: certain ones, at least 1: computed whatever the draft is.
        drafted: of its draft.
        rate: the chance that a drafted token is right if those before it are.
    """

    known: int
    drafted: int
    rate: float

    def gain(self, tokens: int) -> float:
        """Return the expected tokens that count, if it brings so many."""
        right, gain = 1.0, float(min(self.known, tokens))
        for _ in range(min(self.drafted, tokens - self.known)):
            right *= self.rate
            gain += right
        return gain


class CallCosts:
    """Seconds of a step by its rows and the tokens of each, as they were measured."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int], tuple[float, int]] = {}
        self._sizes: list[tuple[int, int, int]] = []

    def note(self, rows: int, tokens: int, seconds: float) -> None:
        """Record a step with `tokens` of each of `rows` rows."""
        key = (rows, tokens)
        if key not in self._seconds:
            insort(self._sizes, (rows * tokens, *key))
        mean, count = self._seconds.get(key, (seconds, 0))
        if count < _FIRST:
            mean = min(mean, seconds)
        else:
            mean += _COST_STEP * (min(seconds, _OUTLIER * mean) - mean)
        self._seconds[key] = (mean, count + 1)

    def bounds(self, rows: int, tokens: int) -> tuple[float, float]:
        """Return the least and the most that a step takes: equal where it was measured, or lies between two that were.
        Beyond the largest a token costs between nothing and as much as it does there."""
        if (known := self._seconds.get((rows, tokens))) is not None:
            return known[0], known[0]
        size = rows * tokens
        at = bisect_left(self._sizes, (size, 0, 0))
        if at == len(self._sizes):
            if not at:
                return 0.0, float("inf")
            most, seconds = self._sizes[-1][0], self._at(-1)
            return seconds, seconds * size / most
        above = self._at(at)
        if at == 0 or self._sizes[at][0] == size:
            return above, above
        low, high = self._sizes[at - 1][0], self._sizes[at][0]
        seconds = self._at(at - 1) + (above - self._at(at - 1)) * (size - low) / (high - low)
        return seconds, seconds

    def _at(self, place: int) -> float:
        _, rows, tokens = self._sizes[place]
        return self._seconds[rows, tokens][0]


class Pace:
    """The choice for one context. Tokens of a row are counted with the one that it brings in any case."""

    def __init__(self) -> None:
        self.costs = CallCosts()
        self._rates: dict[int, float] = {}
        self._rest = 0
        self._total_s = self._lost_s = 0.0

    def rests(self, rows: int, most: int) -> bool:
        """Return whether to make no drafts for this step of `rows` rows: none could pay, or the latest did not and
        making them takes time, too. `most`: tokens of a row."""
        if self._rest > 0:
            self._rest -= 1
            return True
        alone = self.costs.bounds(rows, 1)[1]
        return most < 2 or all(self.costs.bounds(rows, n)[0] >= n * alone for n in range(2, most + 1))

    def choose(self, bids: Seq[Bid], most: int, drafting_s: float) -> int:
        """Return the tokens of each row that give most tokens a second, at most `most`.

        A size that was not measured is tried if what that may lose is within TRIALS_SHARE of the time so far.
        `drafting_s`: seconds that it took to make the drafts.
        """
        rows = len(bids)
        each = self.costs.bounds(rows, 1)[1] / rows
        best, best_rate = 1, 1.0
        for tokens in range(2, min(most, max(bid.known + bid.drafted for bid in bids)) + 1):
            gain = sum(bid.gain(tokens) for bid in bids)
            least, highest = self.costs.bounds(rows, tokens)
            affordable = self._lost_s + highest - gain * each <= TRIALS_SHARE * self._total_s
            seconds = least if affordable else highest
            if gain * each > best_rate * seconds:
                best, best_rate = tokens, gain * each / seconds
        if best == 1 and each > 0:
            self._rest = min(MOST_REST, int(drafting_s / (IDLE_SHARE * each * rows)))
        return best

    def note(self, rows: int, tokens: int, counted: int, seconds: float) -> None:
        """Record a step: `counted` tokens of all rows were right."""
        self._total_s += seconds
        if tokens > 1:
            self._lost_s = max(0.0, self._lost_s + seconds - counted * self.costs.bounds(rows, 1)[1] / rows)
        self.costs.note(rows, tokens, seconds)

    def rate(self, matched: int, own: float | None) -> float:
        """Return the chance of a drafted token. `own`: the row's rate; `matched`: of its draft."""
        usual = self._rates.get(matched, _FIRST_RATE)
        return usual if own is None else (usual + own) / 2

    def learn(self, matched: int, own: float | None, right: int, *, wrong: bool) -> float | None:
        """Learn from a draft of which `right` tokens were right, and the next `wrong` if there was one; return the
        row's new rate."""
        usual = self._rates.get(matched, _FIRST_RATE)
        for hit in [1.0] * right + [0.0] * wrong:
            usual += _RATE_STEP * (hit - usual)
            own = hit if own is None else own + 2 * _RATE_STEP * (hit - own)
        self._rates[matched] = usual
        return own
