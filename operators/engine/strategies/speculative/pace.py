"""Choose how many tokens the rows of a call bring, by what calls and drafts cost and how often these are right.

The choice changes no token of a text, only the time that it takes. All rows of a call bring equally many, since
llama.cpp cuts a batch into micro-batches of equal token counts; and it builds its graph anew for a call of another size
than the last one, which is most of the time of a small model.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf

WIDTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 63)
"""Tokens of a row to choose from, beside 1: few, so that their costs are soon known."""
TRIALS_SHARE = 0.01
"""Share of the time that calls of a size not yet measured may lose, and after which losses there are no drafts."""
GAINS_SHARE = 0.05
"""Share of the time that is kept of what drafts have gained, to lose it again before there are none."""
TRIAL_STEPS = 4
"""Steps in succession to measure a size by."""
IDLE_SHARE = 0.005
"""Share of the time for drafts that no call takes, and choices of none. It is apart from that for losses: where steps
are quick, choices would leave nothing of it for trials."""
MOST_REST = 16
"""Steps without drafts after such a choice at most, while its time is within that share, or of what drafts gained."""
STALE = 1000
"""Steps after which a size is measured again."""
FORGET = 100
"""Steps without drafts after which they are thought to be as good as in the beginning: else drafts that were bad for a
while would never be tried again."""
Kind = tuple[str, int]
"""Drafts that are right equally often: where they come from, and how many tokens before them were found equal there."""
_FIRST_RATE = 0.6
_RATE_STEP = 0.1
_CHANGE_STEP = 0.1


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


def gains(bids: Seq[Bid], most: int) -> list[float]:
    """Return the expected tokens of `bids` that count, if each row brings 0 to `most`: float [most + 1]."""
    more = [0.0] * (most + 1)
    for bid in bids:
        right = 1.0
        for place in range(1, min(bid.known + bid.drafted, most) + 1):
            if place > bid.known:
                right *= bid.rate
            more[place] += right
    return list(accumulate(more))


@dataclass(frozen=True, slots=True)
class Ahead:
    """The costs of drafts that are made after the choice.

    Args:
        token_s: least and most seconds that a token of each row takes.
        late_s: seconds to read what the draft model has not read of the rows.
        left: tokens that these rows are expected to get yet, all together: `late_s` is spread over them.
    """

    token_s: tuple[float, float] = (0.0, 0.0)
    late_s: float = 0.0
    left: float = 1.0


NOTHING_AHEAD = Ahead()


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
        self._latest = deque[float](maxlen=2 * TRIAL_STEPS)

    @property
    def is_sure(self) -> bool:
        return len(self._latest) >= TRIAL_STEPS

    def note(self, seconds: float, step: int) -> None:
        """Record a step."""
        if step - self.noted > STALE:
            self._latest.clear()
        self._latest.append(seconds)
        self.seconds = sorted(self._latest)[len(self._latest) // 4]
        self.noted = step


class CallCosts:
    """Seconds of a step by its rows and the tokens of each, as they were measured."""

    def __init__(self) -> None:
        self.change_s = 0.0
        """What a step costs more after one of another size."""
        self._known: dict[tuple[int, int], StepTime] = {}
        self._sizes: list[tuple[int, tuple[int, int]]] = []
        self._last: tuple[int, int] | None = None
        self._steps = 0

    def note(self, rows: int, tokens: int, seconds: float) -> None:
        """Record a step with `tokens` of each of `rows` rows."""
        key, last = (rows, tokens), self._last
        self._last = key
        self._steps += 1
        known = self._known.get(key)
        if known is None:
            self._known[key] = StepTime(seconds)
            insort(self._sizes, (rows * tokens, key))
        elif key == last:
            known.note(seconds, self._steps)
        elif known.is_sure:
            more = min(max(0.0, seconds - known.seconds), known.seconds)
            self.change_s += _CHANGE_STEP * (more - self.change_s)

    def interrupted(self) -> None:
        """Note that the next step follows one that is not recorded."""
        self._last = None

    @property
    def steps(self) -> int:
        """Number of steps that were recorded."""
        return self._steps

    def is_sure(self, rows: int, tokens: int) -> bool:
        """Return True if this size was measured often, and not long ago."""
        known = self._known.get((rows, tokens))
        return known is not None and known.is_sure and not self.is_stale(rows, tokens)

    def is_stale(self, rows: int, tokens: int) -> bool:
        """Return True if this size was measured, but long ago."""
        return (rows, tokens) in self._known and self._steps - self._known[rows, tokens].noted > STALE

    def on_trial(self, rows: int) -> int:
        """Return the tokens of each of `rows` rows in the last step, if that size is not measured often enough; else
        0."""
        return self._last[1] if self._last and self._last[0] == rows and not self.is_sure(*self._last) else 0

    def changes(self, rows: int, tokens: int) -> float:
        """Return the seconds that a step of this size costs more now."""
        return 0.0 if self._last in (None, (rows, tokens)) else self.change_s

    def bounds(self, rows: int, tokens: int) -> tuple[float, float]:
        """Return the least and the most that a step takes: equal where it was measured often and not long ago, or lies
        between two sizes that were. Else it takes no less than a smaller one. A token beyond the largest size costs at
        most what it does there."""
        known = self._known.get((rows, tokens))
        if known is not None and self.is_sure(rows, tokens):
            return known.seconds, known.seconds
        size = rows * tokens
        at = bisect_left(self._sizes, (size, (0, 0)))
        below = self._at(at - 1) if at else 0.0
        if known is not None:
            return min(below, known.seconds), known.seconds
        if at == len(self._sizes):
            return below, below * size / self._sizes[-1][0] if at else inf
        above, high = self._at(at), self._sizes[at][0]
        if not at or high == size:
            return above, above
        low = self._sizes[at - 1][0]
        seconds = below + (above - below) * (size - low) / (high - low)
        return seconds, seconds

    def _at(self, place: int) -> float:
        return self._known[self._sizes[place][1]].seconds


class DraftPace:
    """The choice for one context. Tokens of a row are counted with the one that it brings in any case."""

    def __init__(self) -> None:
        self.costs = CallCosts()
        self._rates: dict[Kind, float] = {}
        self._learned = 0
        self._rest = 0
        self._drafted = False
        self._total_s = self._lost_s = self._idle_s = 0.0

    def rests(self, rows: int, most: int) -> bool:
        """Return whether to make no drafts for this step of `rows` rows: none could pay, or the latest did not and
        choosing takes time, too, or too much time was lost, or it is not known what so many rows cost without.
        `most`: tokens of a row."""
        if self._rest > 0:
            self._rest -= 1
            return True
        if self._lost_s > TRIALS_SHARE * self._total_s or self._idle_s > IDLE_SHARE * self._total_s:
            return True
        if not self.costs.is_sure(rows, 1):  # fewer rows than were measured might cost as much: calls would look cheap
            return True
        alone = self.costs.bounds(rows, 1)[1]
        if all(self.costs.bounds(rows, n)[0] >= n * alone for n in _widths(most)):
            self._rest = MOST_REST  # looking takes time, too
            return True
        return False

    def rest(self, rows: int, idle_s: float) -> None:
        """Make no drafts for some steps of `rows` rows: `idle_s` seconds went into drafts, or a choice, for nothing.
        What drafts have gained pays for what is more than IDLE_SHARE."""
        if (alone := self.costs.bounds(rows, 1)[1]) > 0:
            self._rest = min(MOST_REST, int(idle_s / (IDLE_SHARE * alone)))
        self._idle_s += idle_s
        paid_s = min(max(0.0, self._idle_s - IDLE_SHARE * self._total_s), max(0.0, -self._lost_s))
        self._idle_s -= paid_s
        self._lost_s += paid_s

    def lose(self, seconds: float) -> None:
        """Note a loss of `seconds` beside those of calls: the draft model was measured."""
        self._lost_s += seconds

    def choose(self, bids: Seq[Bid], most: int, ahead: Ahead = NOTHING_AHEAD) -> int:
        """Return the tokens of each row that give most tokens a second, at most `most`.

        A size that was not measured is tried if what that may lose is within TRIALS_SHARE of the time so far.
        `ahead`: costs of the drafts, unless they are made already.
        """
        rows, costs = len(bids), self.costs
        if 1 < (trial := costs.on_trial(rows)) <= most:
            return trial
        alone = costs.bounds(rows, 1)[1]
        each = alone / rows
        known = min(bid.known for bid in bids)
        best, best_rate = 1, rows / (alone + costs.changes(rows, 1))
        longest = max(bid.known + bid.drafted for bid in bids)
        gain_of = gains(bids, most) if longest > 1 else []
        for fewer, tokens in pairwise((1, *_widths(most))):
            if fewer >= longest:  # the others are fillers
                break
            gain = gain_of[tokens]
            drafted = max(0, tokens - known)
            least, highest = (
                call + drafted * token for call, token in zip(costs.bounds(rows, tokens), ahead.token_s, strict=True)
            )
            may_lose = TRIAL_STEPS * (highest + costs.change_s - gain * each) + ahead.late_s
            seconds = least if self._lost_s + may_lose <= TRIALS_SHARE * self._total_s else highest
            seconds += ahead.late_s * min(1.0, gain / ahead.left)
            if (rate := gain / (seconds + costs.changes(rows, tokens))) > best_rate:
                best, best_rate = tokens, rate
        return best

    def note(self, rows: int, tokens: int, counted: int, seconds: float, drafting_s: float = 0.0) -> None:
        """Record a step: `counted` tokens of all rows were right; `drafting_s` seconds went into drafts before it.

        Of what it lost, more than twice its usual time is not counted: that is other work on the machine.
        """
        self._total_s += seconds + drafting_s
        change_s = self.costs.changes(rows, tokens)
        self.costs.note(rows, tokens, seconds)
        if tokens > 1 or self._drafted:  # to go back to one token costs, too
            usual = min(seconds, 2 * (self.costs.bounds(rows, tokens)[1] + change_s))
            alone = self.costs.bounds(rows, 1)[1]
            lost_s = self._lost_s + usual - counted * alone / rows + (drafting_s if tokens > 1 else 0.0)
            self._lost_s = max(-GAINS_SHARE * self._total_s, lost_s)
        self._drafted = tokens > 1

    def rate(self, kind: Kind, own: float | None) -> float:
        """Return the chance of a drafted token. `own`: the row's rate; `kind`: of its draft. What was learned counts
        less with every step in which nothing is."""
        usual = self._usual(kind)
        return usual if own is None else (usual + own + self._forgotten * (usual - own)) / 2

    def learn(self, kind: Kind, own: float | None, right: int, *, wrong: bool) -> float | None:
        """Learn from a draft of which `right` tokens were right, and the next `wrong` if there was one; return the
        row's new rate."""
        usual = self._usual(kind)
        if right or wrong:
            self._learned = self.costs.steps
        for hit in [1.0] * right + [0.0] * wrong:
            usual += _RATE_STEP * (hit - usual)
            own = hit if own is None else own + 2 * _RATE_STEP * (hit - own)
            self._rates[kind] = usual
        return own

    @property
    def _forgotten(self) -> float:
        """The share of what was learned that does not count any more."""
        return min(1.0, (self.costs.steps - self._learned) / FORGET)

    def _usual(self, kind: Kind) -> float:
        known = self._rates.get(kind, _FIRST_RATE)
        return known + self._forgotten * (_FIRST_RATE - known)


def _widths(most: int) -> list[int]:
    return [tokens for tokens in WIDTHS if tokens <= most]
