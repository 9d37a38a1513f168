"""StepBatch: the work of one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from operators.engine.backend.interface import Decoder, Logits
from operators.engine.scheduler.chunking import PrefillChunk
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import Slot


class IdleReason(StrEnum):
    """The reason why a slot is empty in a decode step."""

    INPUT = "input"
    """No sequence waits, but more may come: look upstream."""
    CREDIT = "credit"
    """Sequences wait, but their node has not collected finished ones: look downstream."""
    REFILL = "refill"
    """Sequences wait until `refill` slots are free."""
    ROOM = "room"
    """Sequences wait for room in the KV cache."""
    TAIL = "tail"
    """The input has ended."""
    PREFIX = "prefix"
    """Not empty: its sequence waits for a prefix that another one computes."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The work of one step: at most one call of the backend.

    Args:
        decoding: sequences that decode one step.
        chunks: of prompts.
        known_logits: sequences with the prompt of one before them: they sample from its logits and need no call. They
            have a step of their own, since a sequence that has just sampled can decode with the others.
        idle: empty slots in a decode step, and why.
        dummy: the slot of a dummy token in this call, so that the backend never sees a lone row; None: no need.
    """

    decoding: list[Sequence] = field(default_factory=list)
    chunks: list[PrefillChunk] = field(default_factory=list)
    known_logits: list[Sequence] = field(default_factory=list)
    idle: dict[IdleReason, int] = field(default_factory=dict)
    dummy: Slot | None = None

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences in this step."""
        return [*self.decoding, *(chunk.row for chunk in self.chunks), *self.known_logits]

    @property
    def needs_call(self) -> bool:
        """True if the backend has anything to compute."""
        return bool(self.decoding or self.chunks)

    def decode(self, decoder: Decoder) -> Logits:
        """Compute the filled buffer of `decoder`. Counts the tokens of the sequences as cached, but not the dummy
        token.

        Raises:
            DecodeFailed: the backend refused the batch, and `undo` is to be called.
        """
        logits = decoder.decode()
        for row in self.decoding:
            row.slot.num_cached += decoder.shape.step_tokens
        for chunk in self.chunks:
            chunk.row.slot.num_cached += chunk.count
        if self.dummy is not None:
            self.dummy.truncate(self.dummy.num_cached)
        return logits

    def undo(self) -> None:
        """Truncate tokens that a failed call may have left in the KV cache."""
        for row in self.sequences:
            row.slot.truncate(row.slot.num_cached)
        if self.dummy is not None:
            self.dummy.truncate(self.dummy.num_cached)
