"""TargetProgress: accepted rows and spent budgets of a run under a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from pipeline.api.meter import Clock, StageMeter
from pipeline.settings import TargetSettings


class Budget(StrEnum):
    """A limit that can end a run before its target is reached. The value is its key in TargetSettings."""

    ROWS = "max_rows"
    ROUNDS = "max_rounds"
    TOKENS = "max_tokens"
    MINUTES = "max_minutes"
    COST = "max_cost"

    @property
    def decides_rows(self) -> bool:
        """True for a limit on the rows that are read, which is fingerprinted. Others may be raised on a resume."""
        return self in (Budget.ROWS, Budget.ROUNDS)

    def limit(self, settings: TargetSettings) -> float | None:
        """Return the limit in `settings`; None for no limit."""
        found: float | None = getattr(settings, self)
        return found

    def text(self, settings: TargetSettings) -> str:
        """Return the limit as typed, without `target.`: `max_minutes=2.5`."""
        return f"{self}={str(self.limit(settings)).removesuffix('.0')}"


class TargetProgress:
    """Counts and budgets of a run under a target. The source and the node `target` each write their own attributes; the
    main thread reads them."""

    def __init__(self, settings: TargetSettings) -> None:
        self.settings = settings
        self.wanted = settings.accepted_rows or 0
        """Rows to accept."""
        self.accepted = 0
        """Accepted rows of chunks that the node `target` has ended."""
        self.arrived = 0
        """Rows that have reached the node `target`, of open chunks too."""
        self.round_rows: int | None = None
        """Source rows per round; None until the first round is read."""
        self.spent: Budget | None = None
        """The budget that ended the run; None too if the source or a node simply ended."""
        self.grows = False
        """True if the input may have more rows another time (`append`)."""
        self._before: dict[str, float] = {"tokens": 0, "seconds": 0.0, "cost": 0.0}
        self._measured: Callable[[], dict[str, float]] = dict

    @property
    def reached(self) -> bool:
        """True if enough rows are accepted."""
        return self.accepted >= self.wanted

    @property
    def ended_well(self) -> bool:
        """True if the run is done: enough rows are accepted, or all of an input that may grow are read."""
        return self.reached or (self.grows and self.spent is None)

    @property
    def counted(self) -> int:
        """Rows to show as progress. Rows of open chunks count, but the full number only once the target is reached."""
        return self.wanted if self.reached else min(self.arrived, self.wanted - 1)

    @property
    def sums(self) -> dict[str, float]:
        """Completion tokens, seconds of running time and money spent at servers, earlier attempts included."""
        now = self._measured()
        return {key: before + now.get(key, 0) for key, before in self._before.items()}

    @property
    def cost(self) -> float:
        """Money spent at servers, earlier attempts included."""
        return self.sums["cost"]

    @property
    def last_row(self) -> int | None:
        """Maximum number of source rows over all rounds; None for no limit, or while the size of a round is unknown."""
        rounds, rows = self.settings.max_rounds, self.settings.max_rows
        of_rounds = rounds * self.round_rows if rounds is not None and self.round_rows is not None else None
        return min((n for n in (of_rounds, rows) if n is not None), default=None)

    def check(self) -> bool:
        """Return True if no chunk is to begin any more: the target is reached, or tokens, time or money are spent,
        which is noted in `spent`. The limits on rows and rounds do not count here: rows already read are still
        processed."""
        if self.reached or (self.spent is not None and not self.spent.decides_rows):
            return True
        sums = self.sums
        spent = {Budget.TOKENS: sums["tokens"], Budget.MINUTES: sums["seconds"] / 60, Budget.COST: sums["cost"]}
        for budget, used in spent.items():
            limit = budget.limit(self.settings)
            if limit is not None and used >= limit:
                self.spent = budget
                return True
        return False

    def source_ended(self, row: int) -> None:
        """Note that the source has ended after `row` rows."""
        if row and not self.check():
            self.spent = Budget.ROWS if row == self.settings.max_rows else Budget.ROUNDS

    def measure(self, clock: Clock, meters: Callable[[], Iterable[StageMeter]]) -> None:
        """Measure this attempt: its time by `clock`, from now on, its completion tokens and its money by `meters`."""
        began = clock()

        def measured() -> dict[str, float]:
            found = list(meters())
            tokens, cost = sum(m.tokens_out for m in found), sum(m.cost for m in found)
            return {"tokens": tokens, "seconds": clock() - began, "cost": cost}

        self._measured = measured

    def spent_before(self, sums: Mapping[str, float]) -> None:
        """Start from what earlier attempts have spent, committed or not."""
        self._before = {key: max(before, sums.get(key, 0)) for key, before in self._before.items()}

    def resume(self, accepted: int, **sums: float) -> None:
        """Start from the counts of earlier attempts. `sums`: as `sums` has them."""
        self.spent_before(sums)
        self.accepted = self.arrived = accepted
