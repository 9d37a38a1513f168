"""StepBatch: what one step computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from operators.engine.scheduler.prefill import PrefillChunk
from operators.engine.sequence import Sequence


class IdleReason(StrEnum):
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
class DummyToken:
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
class StepBatch:
    """What one step computes: at most one call of the backend.

    Args:
        decoding: rows that decode one step.
        chunks: pieces of prompts.
        known_logits: rows with the prompt of a row before them: they sample from its logits and need no call. The
            scheduler gives them a step of their own, since a row that has just sampled can decode with the others.
        idle: empty slots in a decode step, and why.
        dummy: the token beside a lone row; None: no need.
    """

    decoding: list[Sequence] = field(default_factory=list)
    chunks: list[PrefillChunk] = field(default_factory=list)
    known_logits: list[Sequence] = field(default_factory=list)
    idle: dict[IdleReason, int] = field(default_factory=dict)
    dummy: DummyToken | None = None

    @property
    def sequences(self) -> list[Sequence]:
        """The rows that take part."""
        return [*self.decoding, *(chunk.row for chunk in self.chunks), *self.known_logits]

    @property
    def needs_call(self) -> bool:
        """Whether the backend has anything to compute."""
        return bool(self.decoding or self.chunks)
