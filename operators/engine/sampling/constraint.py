"""The interface of a constraint on a text. operators/constraints/ implements it with llguidance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipeline.api.numbers import counted


@dataclass
class Costs:
    """Costs of a row's constraint."""

    constrained_tokens: int = counted("tokens that constraints have seen", "tokens")
    forced_tokens: int = counted("tokens that were not drawn: constraints allowed no other", "tokens")
    masks: int = counted("tokens drawn anew among all that fit: the first did not", "tokens")
    constraint_s: float = counted("spent in constraints", "s")

    def add(self, other: Costs) -> None:
        """Add the costs of another row."""
        self.constrained_tokens += other.constrained_tokens
        self.forced_tokens += other.forced_tokens
        self.masks += other.masks
        self.constraint_s += other.constraint_s


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
