"""What a decode strategy is to the step loop."""

from __future__ import annotations

from typing import Protocol

from operators.decoding.calls import Call, Draw
from operators.decoding.model import Logits


class Strategy(Protocol):
    """How completions are made: what each call computes for its rows, and what becomes of the logits."""

    def fill(self, call: Call) -> None:
        """Put the tokens of `call` into the decoder's batch."""

    def advance(self, call: Call, logits: Logits) -> None:
        """Take the logits of `call`, and move its rows on."""

    def draw(self, work: Draw) -> None:
        """Draw for rows whose logits are known already."""
