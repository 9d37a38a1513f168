"""What is computed at once: a call of the backend, or draws from logits that are known already."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from operators.engine.scheduler.prefill import Span
from operators.engine.sequence import Sequence


class Unfilled(StrEnum):
    """Why slots are empty in a decode step."""

    INPUT = "input"
    """No row waits, more may come: look upstream."""
    CREDIT = "credit"
    """Rows wait, but what their node finished has not been taken: look downstream."""
    REFILL = "refill"
    """Rows wait until `refill` slots are free."""
    ROOM = "room"
    """Rows wait for room in the KV cache."""
    TAIL = "tail"
    """The input has ended."""
    PREFIX = "prefix"
    """Not empty: the row in it waits for the beginning of its prompt, which another row computes."""


@dataclass(frozen=True, slots=True)
class Company:
    """A token of no meaning in the slot next to a lone row, for one call: the backend never sees the row alone.

    Args:
        slot: where it is.
        behind: the row in that slot; None where it is empty.
    """

    slot: int
    behind: Sequence | None = None

    @property
    def position(self) -> int:
        """Behind what is in the slot now."""
        return 0 if self.behind is None else self.behind.n_past


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the backend.

    Args:
        rows: those that decode one step.
        spans: pieces of prompts.
        unfilled: empty slots in a decode step, and why.
        beside: what keeps a lone row company; None: no need.
    """

    rows: list[Sequence]
    spans: list[Span]
    unfilled: dict[Unfilled, int] = field(default_factory=dict)
    beside: Company | None = None

    @property
    def sequences(self) -> list[Sequence]:
        """The rows that take part."""
        return [*self.rows, *(span.row for span in self.spans)]


@dataclass(frozen=True, slots=True)
class Draw:
    """No call: `rows` have the prompt of a row before them, and draw from the same logits."""

    rows: list[Sequence]

    @property
    def sequences(self) -> list[Sequence]:
        """The rows that take part."""
        return self.rows


Work = Call | Draw
