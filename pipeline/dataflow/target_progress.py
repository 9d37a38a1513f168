"""TargetProgress: how many rows a run under a target wants, how many it has, and what it may spend on them."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from pipeline.api.meter import Clock
from pipeline.settings import TargetSettings


class Budget(StrEnum):
    """A limit that can be reached before the target is, by its key in TargetSettings."""

    ROWS = "max_rows"
    ROUNDS = "max_rounds"
    TOKENS = "max_tokens"
    MINUTES = "max_minutes"

    @property
    def decides_rows(self) -> bool:
        """True for a limit on what is read. Tokens and minutes can be raised, and the same run goes on."""
        return self in (Budget.ROWS, Budget.ROUNDS)

    def limit(self, settings: TargetSettings) -> float | None:
        """The limit that `settings` give; None for none."""
        found: float | None = getattr(settings, self)
        return found

    def text(self, settings: TargetSettings) -> str:
        """The limit as it is typed, without `target.`: `max_minutes=2.5`."""
        return f"{self}={str(self.limit(settings)).removesuffix('.0')}"


class TargetProgress:
    """The counts and budgets of a run under a target. The source and the node `target` write it, each its own
    attributes; the main thread shows it.

    Args:
        settings: the target and its budgets.
    """

    def __init__(self, settings: TargetSettings) -> None:
        self.settings = settings
        self.wanted = settings.accepted_rows or 0
        """Rows that are to pass."""
        self.accepted = 0
        """Rows that have passed, in the chunks that the node `target` has ended."""
        self.arrived = 0
        """Rows that have come to it, decided or not."""
        self.round_rows: int | None = None
        """Source rows of a round, once the first one has been read."""
        self.spent: Budget | None = None
        """The budget that was spent first; None too where the input or a node had no more rows."""
        self._before = 0, 0.0
        self._tokens: Callable[[], int] = lambda: 0
        self._seconds: Clock = lambda: 0.0

    @property
    def reached(self) -> bool:
        """True when enough rows have passed."""
        return self.accepted >= self.wanted

    @property
    def counted(self) -> int:
        """Rows that count towards the target: all that are wanted only when these are the first ones."""
        return self.wanted if self.reached else min(self.arrived, self.wanted - 1)

    @property
    def tokens(self) -> int:
        """Completion tokens that were made, with earlier attempts."""
        return self._before[0] + self._tokens()

    @property
    def seconds(self) -> float:
        """Seconds for which the run has worked, with earlier attempts."""
        return self._before[1] + self._seconds()

    @property
    def last_row(self) -> int | None:
        """Source rows that may be read, over all rounds; None while any number may."""
        rounds, rows = self.settings.max_rounds, self.settings.max_rows
        of_rounds = rounds * self.round_rows if rounds is not None and self.round_rows is not None else None
        return min((n for n in (of_rounds, rows) if n is not None), default=None)

    def check(self) -> bool:
        """Return True when nothing more is to be begun: the target is reached, or tokens or time are spent, which is
        noted. Rows that have been read are worked on to the end, though no more may be read."""
        if self.reached or (self.spent is not None and not self.spent.decides_rows):
            return True
        for budget, used in ((Budget.TOKENS, self.tokens), (Budget.MINUTES, self.seconds / 60)):
            limit = budget.limit(self.settings)
            if limit is not None and used >= limit:
                self.spent = budget
                return True
        return False

    def source_ended(self, row: int) -> None:
        """Note that the source has sent `row` rows and sends no more."""
        if row and not self.check():
            self.spent = Budget.ROWS if row == self.settings.max_rows else Budget.ROUNDS

    def measure(self, clock: Clock, tokens: Callable[[], int]) -> None:
        """Count time from now on, by `clock`, and the completion tokens of this attempt, which `tokens()` gives."""
        began = clock()
        self._seconds, self._tokens = lambda: clock() - began, tokens

    def resume(self, accepted: int, tokens: int, seconds: float) -> None:
        """Go on from where earlier attempts have come."""
        self._before = tokens, seconds
        self.accepted = self.arrived = accepted
