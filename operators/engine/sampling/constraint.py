"""The interface of a constraint on a text. operators/constraints/ implements it with llguidance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


@dataclass
class Costs:
    """Costs of a row's constraint.

    Args:
        tokens: tokens that it has seen.
        forced: those of them that were not drawn because there was no other.
        masks: times that all tokens that fit were listed, because the one that was drawn did not.
        seconds: time spent in it.
    """

    tokens: int = 0
    forced: int = 0
    masks: int = 0
    seconds: float = 0.0

    def add(self, other: Costs) -> None:
        """Add the costs of another row."""
        self.tokens += other.tokens
        self.forced += other.forced
        self.masks += other.masks
        self.seconds += other.seconds


class Matcher(Protocol):
    """The state of one row in its constraint."""

    costs: Costs

    @property
    def complete(self) -> bool:
        """True if the text so far satisfies the constraint."""

    @property
    def ended(self) -> bool:
        """True if nothing can follow."""

    @property
    def error(self) -> str | None:
        """The reason why it cannot go on, if it cannot: a constraint may turn out to be too complex."""

    def allows(self, token: int) -> bool:
        """Return whether `token` may come next; an end-of-generation token may if the text is complete."""

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return bool [n_vocab]: the tokens that may come next."""

    def take(self, token: int) -> None:
        """Move on by `token`."""

    def forced(self) -> list[int]:
        """Return the tokens that must come next because no other may; often none."""


class Constraint(Protocol):
    """A constraint on the texts of rows; rows with equal constraints share one."""

    @property
    def noun(self) -> str:
        """The word for a text that fits, in messages."""

    @property
    def skip_forced(self) -> bool:
        """True if forced tokens are not drawn."""

    @property
    def identity(self) -> str:
        """Everything in it that can change a text."""

    @property
    def check(self) -> Callable[[str], str | None]:
        """Returns why a finished text, without reasoning, is not what was asked for, or None."""

    def matcher(self) -> Matcher:
        """Return the state of a row that begins."""
