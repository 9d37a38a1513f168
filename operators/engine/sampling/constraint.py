"""What a constraint on a text is to the engine. operators/constraints/ implements it with llguidance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


@dataclass
class Costs:
    """What the constraint of a row has cost.

    Args:
        tokens: that it has seen.
        forced: of these, that were not drawn because there was no other.
        masks: how often its tokens had to be listed, because the one that was drawn did not fit.
        seconds: spent in it.
    """

    tokens: int = 0
    forced: int = 0
    masks: int = 0
    seconds: float = 0.0

    def add(self, other: Costs) -> None:
        """Add those of another row."""
        self.tokens += other.tokens
        self.forced += other.forced
        self.masks += other.masks
        self.seconds += other.seconds


class Matcher(Protocol):
    """How far the text of one row is in its constraint."""

    costs: Costs

    @property
    def complete(self) -> bool:
        """Whether the text satisfies the constraint as it stands."""

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""

    @property
    def error(self) -> str | None:
        """Why it cannot go on, if it cannot: a constraint may turn out to be too complex."""

    def allows(self, token: int) -> bool:
        """Whether `token` may come next; an end-of-generation token may where the text is complete."""

    def allowed(self) -> npt.NDArray[np.bool_]:
        """bool [n_vocab]: what may come next."""

    def take(self, token: int) -> None:
        """`token` has come."""

    def forced(self) -> list[int]:
        """The tokens that come next because there are no others; often none."""


class Constraint(Protocol):
    """What the texts of rows have to be; shared by all rows that have the same."""

    noun: str
    """What a text that fits is called."""
    skip_forced: bool
    """Whether forced tokens are not drawn."""
    identity: str
    """Everything of it that can change a text."""

    def matcher(self) -> Matcher:
        """For a row that begins."""
