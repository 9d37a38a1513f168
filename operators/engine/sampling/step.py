"""What a step of the chain is.

A step changes logits or drops candidates. It has two forms: over a whole vocabulary, one row at a time, and over the
few candidates that are left, several rows at once. Both leave the same candidates with the same logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from operators.engine.sampling.candidates import Few
from operators.engine.sampling.logit_edits import Change, find
from operators.engine.sampling.whole_vocabulary import Full

if TYPE_CHECKING:
    from operators.engine.sequence import Sequence


class Step(Protocol):
    """A step. Its `repr` names it and everything that it does: content keys are made of it."""

    def few(self, few: Few, rows: Seq[Sequence]) -> None:
        """Change the candidates of `rows`, in that order."""

    def full(self, full: Full, row: Sequence) -> None:
        """Change the candidates of `row`."""


@runtime_checkable
class HistoryStep(Step, Protocol):
    """A step that changes the logits of tokens that came before."""

    def change(self, row: Sequence) -> Change | None:
        """What it changes of `row`, None for nothing."""


class Editing(ABC):
    """The two forms of a HistoryStep, once it says what it changes."""

    @abstractmethod
    def change(self, row: Sequence) -> Change | None:
        """See HistoryStep.change."""

    def few(self, few: Few, rows: Seq[Sequence]) -> None:
        """See Step.few."""
        for i, row in enumerate(rows):
            if (change := self.change(row)) is not None:
                at, found = find(change.ids, few.ids[i])
                few.logits[i, found] = change.apply(few.logits[i, found], at[found])
        few.sort()

    def full(self, full: Full, row: Sequence) -> None:
        """See Step.full."""
        if (change := self.change(row)) is not None:
            values = full.writable()
            values[change.ids] = change.apply(values[change.ids], slice(None))


def history(row: Sequence, last: int | None) -> np.typing.NDArray[np.int32]:
    """The last tokens of prompt and completion, oldest first; all of them where `last` is None."""
    made = np.array(row.tokens if last is None else row.tokens[-last:], np.int32)
    room = len(row.prompt) if last is None else min(len(row.prompt), last - len(made))
    return np.concatenate([row.prompt[len(row.prompt) - room :], made])
