"""Choose how many tokens each row of a call brings (the speculation length), by measured times and acceptance rates.

The choice changes no token of a text, only the time that it takes. All rows of a call bring equally many, since
llama.cpp cuts a batch into micro-batches of equal token counts; and it builds its graph anew for a call of another size
than the last one, which is most of the time of a small model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from operators.engine.strategies.speculative.call_times import MEASURED_STEPS, CallTimes

LENGTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 63)
"""Tokens of a row in a call to choose from, beside 1: few, so that the times of these calls are soon measured."""
EXPLORATION_SHARE = 0.01
"""Share of the run time that may be lost to calls of sizes that were not measured and to rejected drafts. While more is
lost, nothing is drafted."""
SAVED_SHARE = 0.05
"""Share of the run time up to which time that drafts have saved is kept, to set later losses off against it."""
OVERHEAD_SHARE = 0.005
"""Share of the run time for drafts that no call takes, and for choosing to bring none. It is apart from that for
losses: where steps are quick, choosing would leave nothing of it for calls of new sizes."""
MOST_SKIPPED = 16
"""Steps without drafts after the choice to bring none, at most, to stay within OVERHEAD_SHARE."""
FORGET_STEPS = 100
"""Steps without a verified draft after which acceptance rates are again what is assumed in the beginning: else drafts
that were bad for a while would never be tried again."""
Kind = tuple[str, int]
"""Drafts of one acceptance rate: where they come from, and how many tokens before them were found equal there."""
_FIRST_RATE = 0.6
"""Acceptance rate that is assumed before a draft was verified."""
_RATE_WEIGHT = 0.1
"""Weight of a verified token in the running mean of a kind's acceptance rate; in that of a row it is twice as much."""


@dataclass(slots=True)
class RowDraft:
    """What a row could bring to a call.

    Args:
        known: certain tokens, at least 1: computed whatever the draft is.
        drafted: tokens of its draft.
        rate: the chance that a drafted token is accepted if those before it are.
    """

    known: int
    drafted: int
    rate: float


def expected_tokens(drafts: Sequence[RowDraft], most: int) -> list[float]:
    """Return how many tokens rows are expected to get, if each brings 0 to `most`: float [most + 1]."""
    more = [0.0] * (most + 1)
    for draft in drafts:
        accepted = 1.0
        for place in range(1, min(draft.known + draft.drafted, most) + 1):
            if place > draft.known:
                accepted *= draft.rate
            more[place] += accepted
    return list(accumulate(more))


@dataclass(frozen=True, slots=True)
class DraftingCosts:
    """What drafts cost that are made after the choice.

    Args:
        token_s: least and most seconds that a token of each row takes.
        prefill_s: seconds to compute what the draft model has not computed of the rows.
        left: tokens that these rows are expected to get yet, all together: `prefill_s` is spread over them.
    """

    token_s: tuple[float, float] = (0.0, 0.0)
    prefill_s: float = 0.0
    left: float = 1.0


NO_COSTS = DraftingCosts()
"""Of drafts that are there already."""


class DraftLength:
    """The choice for one context. Tokens of a row are counted with the one that it brings in any case.

    Attributes:
        times: of calls.
    """

    def __init__(self) -> None:
        self.times = CallTimes()
        self._rates: dict[Kind, float] = {}
        self._verified = 0
        self._to_skip = 0
        self._drafted = False
        self._total_s = self._lost_s = self._overhead_s = 0.0

    def skips(self, rows: int, most: int) -> bool:
        """Return whether to make no drafts for this step of `rows` rows: none could pay, or the latest did not and
        choosing takes time, too, or too much time was lost, or the time of a step without is not measured for so many
        rows. `most`: tokens of a row."""
        if self._to_skip > 0:
            self._to_skip -= 1
            return True
        if self._lost_s > EXPLORATION_SHARE * self._total_s or self._overhead_s > OVERHEAD_SHARE * self._total_s:
            return True
        if not self.times.is_measured(rows, 1):  # fewer rows might take as long: calls would look cheap
            return True
        alone = self.times.bounds(rows, 1)[1]
        if all(self.times.bounds(rows, n)[0] >= n * alone for n in _lengths(most)):
            self._to_skip = MOST_SKIPPED  # looking takes time, too
            return True
        return False

    def skip(self, rows: int, overhead_s: float) -> None:
        """Make no drafts for some steps of `rows` rows: `overhead_s` seconds went into drafts, or a choice, for
        nothing. What drafts have saved pays for what is more than OVERHEAD_SHARE."""
        if (alone := self.times.bounds(rows, 1)[1]) > 0:
            self._to_skip = min(MOST_SKIPPED, int(overhead_s / (OVERHEAD_SHARE * alone)))
        self._overhead_s += overhead_s
        paid_s = min(max(0.0, self._overhead_s - OVERHEAD_SHARE * self._total_s), max(0.0, -self._lost_s))
        self._overhead_s -= paid_s
        self._lost_s += paid_s

    def lose(self, seconds: float) -> None:
        """Note a loss of `seconds` beside those of calls: the draft model was measured."""
        self._lost_s += seconds

    def choose(self, drafts: Sequence[RowDraft], most: int, costs: DraftingCosts = NO_COSTS) -> int:
        """Return the tokens of each row that give most tokens a second, at most `most`.

        A size that was not measured is tried if what that may lose is within EXPLORATION_SHARE of the time so far.
        """
        rows, times = len(drafts), self.times
        if 1 < (trial := times.on_trial(rows)) <= most:
            return trial
        alone = times.bounds(rows, 1)[1]
        known = min(draft.known for draft in drafts)
        best, best_rate = 1, rows / (alone + times.switching(rows, 1))
        longest = max(draft.known + draft.drafted for draft in drafts)
        expected = expected_tokens(drafts, most) if longest > 1 else []
        for fewer, tokens in pairwise((1, *_lengths(most))):
            if fewer >= longest:  # the others are fillers
                break
            gain = expected[tokens]
            drafted = max(0, tokens - known)
            least, highest = (
                call + drafted * token for call, token in zip(times.bounds(rows, tokens), costs.token_s, strict=True)
            )
            may_lose = MEASURED_STEPS * (highest + times.switch_s - gain * (alone / rows)) + costs.prefill_s
            seconds = least if self._lost_s + may_lose <= EXPLORATION_SHARE * self._total_s else highest
            seconds += costs.prefill_s * min(1.0, gain / costs.left)
            if (rate := gain / (seconds + times.switching(rows, tokens))) > best_rate:
                best, best_rate = tokens, rate
        return best

    def note(self, rows: int, tokens: int, counted: int, seconds: float, drafting_s: float = 0.0) -> None:
        """Record a step: rows got `counted` tokens; `drafting_s` seconds went into drafts before it.

        Of what it lost, more than twice its usual time is not counted: that is other work on the machine.
        """
        self._total_s += seconds + drafting_s
        switch_s = self.times.switching(rows, tokens)
        self.times.note(rows, tokens, seconds)
        if tokens > 1 or self._drafted:  # to go back to one token costs, too
            usual = min(seconds, 2 * (self.times.bounds(rows, tokens)[1] + switch_s))
            alone = self.times.bounds(rows, 1)[1]
            lost_s = self._lost_s + usual - counted * alone / rows + (drafting_s if tokens > 1 else 0.0)
            self._lost_s = max(-SAVED_SHARE * self._total_s, lost_s)
        self._drafted = tokens > 1

    def rate(self, kind: Kind, own: float | None) -> float:
        """Return the acceptance rate of a drafted token. `own`: the row's rate; `kind`: of its draft. What was seen
        counts less with every step in which nothing is verified."""
        usual = self._usual(kind)
        return usual if own is None else (usual + own + self._forgotten * (usual - own)) / 2

    def verified(self, kind: Kind, own: float | None, accepted: int, *, rejected: bool) -> float | None:
        """Learn from a draft of which `accepted` tokens were right, and the next `rejected` if there was one; return
        the row's new rate."""
        usual = self._usual(kind)
        if accepted or rejected:
            self._verified = self.times.steps
        for hit in [1.0] * accepted + [0.0] * rejected:
            usual += _RATE_WEIGHT * (hit - usual)
            own = hit if own is None else own + 2 * _RATE_WEIGHT * (hit - own)
            self._rates[kind] = usual
        return own

    @property
    def _forgotten(self) -> float:
        """The share of what was seen that does not count any more."""
        return min(1.0, (self.times.steps - self._verified) / FORGET_STEPS)

    def _usual(self, kind: Kind) -> float:
        rate = self._rates.get(kind, _FIRST_RATE)
        return rate + self._forgotten * (_FIRST_RATE - rate)


def _lengths(most: int) -> list[int]:
    return [tokens for tokens in LENGTHS if tokens <= most]
