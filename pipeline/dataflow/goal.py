"""Goal: how many rows are wanted, how many there are, and what may be spent on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from pipeline.api.meter import Clock
from pipeline.settings import TargetSettings


@dataclass
class Spent:
    """What has been done for a target, as of the end of a chunk.

    Args:
        accepted: rows that have passed.
        tokens: completion tokens that were made.
        seconds: for which the run has worked.
    """

    accepted: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Goal:
    """What the source, the node `target` and the display of a run under a target share.

    Args:
        settings: the target and its budgets.
    """

    def __init__(self, settings: TargetSettings) -> None:
        self._settings = settings
        self._before = Spent()
        self._clock: Clock = lambda: 0.0
        self._tokens: Callable[[], int] = lambda: 0
        self._began = 0.0
        self.accepted = 0
        """Rows that have passed, in the chunks that the node `target` has ended."""
        self.arrived = 0
        """Rows that have come to it, decided or not; what is shown while the run runs."""
        self.round_rows: int | None = None
        """Source rows of a round, once the first one has been read."""
        self._spent: str | None = None
        self._read_out: str | None = None

    @property
    def wanted(self) -> int:
        """Rows that are to pass."""
        return self._settings.accepted_rows or 0

    @property
    def reached(self) -> bool:
        """Whether enough rows have passed."""
        return self.accepted >= self.wanted

    @property
    def spent(self) -> str | None:
        """The budget that was spent before the target was reached."""
        return None if self.reached else self._spent or self._read_out

    @property
    def over(self) -> bool:
        """Whether nothing more is to be begun: the target is reached, or time or tokens are spent. Rows that have been
        read are worked on to the end, though no more may be read."""
        if self.reached or self._spent:
            return True
        now, s = self.now(), self._settings
        if s.max_tokens is not None and now.tokens >= s.max_tokens:
            self._spent = f"target.max_tokens={s.max_tokens}"
        elif s.max_minutes is not None and now.seconds >= 60 * s.max_minutes:
            self._spent = f"target.max_minutes={s.max_minutes:g}"
        return self._spent is not None

    @property
    def last_row(self) -> int | None:
        """Source rows that may be read, over all rounds; None while any number may."""
        rounds, rows = self._settings.max_rounds, self._settings.max_rows
        of_rounds = rounds * self.round_rows if rounds is not None and self.round_rows is not None else None
        return min((n for n in (of_rounds, rows) if n is not None), default=None)

    def source_ended(self, row: int) -> None:
        """The source has sent `row` rows and sends no more."""
        s = self._settings
        if self.over:
            return
        if row == 0:
            self._read_out = "the input, which has no rows,"
        elif row == s.max_rows:
            self._read_out = f"target.max_rows={s.max_rows}"
        else:
            self._read_out = f"target.max_rounds={s.max_rounds}"

    def measure(self, clock: Clock, tokens: Callable[[], int]) -> None:
        """Time counts from now, on `clock`; `tokens()` are those that this attempt has made."""
        self._clock, self._tokens, self._began = clock, tokens, clock()

    def now(self) -> Spent:
        """What has been done up to now, with earlier attempts."""
        before = self._before
        return Spent(self.accepted, before.tokens + self._tokens(), before.seconds + self._clock() - self._began)

    def go_on_from(self, before: Spent) -> None:
        """An earlier attempt has come as far as `before`."""
        self._before = before
        self.accepted = self.arrived = before.accepted

    def as_values(self) -> dict[str, float]:
        """`now()` as plain values."""
        return asdict(self.now())
