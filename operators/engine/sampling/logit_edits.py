"""Changes of single logits: a bias, a ban, a penalty. They touch the tokens that they are about and nothing else.

Bans are of bad words, and of the end before `min_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from operators.engine.sampling.vocabulary_blocks import Floats, Ids

if TYPE_CHECKING:
    from operators.engine.sampling.step import SampledRow


class Change(Protocol):
    """New logits for some tokens of a row. `ids`: int64 [n], rising, no repeats."""

    ids: Ids

    def apply(self, logits: Floats, which: Ids | slice) -> Floats:
        """The new values of `logits`, float32 [m], which are those of the tokens `ids[which]`."""


class Bias:
    """Adds to logits; -inf forbids. `ids`: int64 [n], rising, no repeats; `biases`: float32 [n]."""

    def __init__(self, ids: Ids, biases: Floats) -> None:
        self.ids = ids
        self.biases = biases

    def apply(self, logits: Floats, which: Ids | slice) -> Floats:
        """See Change.apply."""
        return logits + self.biases[which]


def forbid(ids: Sequence[int] | frozenset[int] | set[int]) -> Bias:
    """A change after which none of `ids` comes."""
    rising = np.unique(np.array(list(ids), np.int64))
    return Bias(rising, np.full(len(rising), -np.inf, np.float32))


class Patch:
    """The logits of a row that differ from what the model gave.

    Attributes:
        ids: int64 [n], rising.
        values: float32 [n].
    """

    def __init__(self, logits: Floats, changes: Sequence[Change]) -> None:
        self.ids = changes[0].ids if len(changes) == 1 else np.unique(np.concatenate([c.ids for c in changes]))
        self.values = logits[self.ids]
        for change in changes:
            at = np.searchsorted(self.ids, change.ids)
            self.values[at] = change.apply(self.values[at], slice(None))

    def onto(self, ids: Ids, values: Floats) -> None:
        """Correct `values`, a writable array of the logits of `ids`."""
        at, found = find(self.ids, ids)
        values[found] = self.values[at[found]]


def find(rising: Ids, wanted: Ids) -> tuple[Ids, np.typing.NDArray[np.bool_]]:
    """Where each of `wanted` stands in `rising`, which has one entry at least, and whether it is there at all."""
    at = np.minimum(np.searchsorted(rising, wanted), len(rising) - 1)
    return at, rising[at] == wanted


def history(row: SampledRow, last: int | None) -> np.typing.NDArray[np.int32]:
    """The last tokens of prompt and completion, oldest first; all of them where `last` is None."""
    made = np.array(row.tokens if last is None else row.tokens[-last:], np.int32)
    room = len(row.prompt) if last is None else min(len(row.prompt), last - len(made))
    return np.concatenate([row.prompt[len(row.prompt) - room :], made])


def changes_of(row: SampledRow) -> list[Change]:
    """What is done to the logits of `row` before a cut: bias, bans, and then the penalties that stand first."""
    params = row.params
    changes: list[Change] = [] if params.bias is None else [params.bias]
    banned = set(params.end_ids) if len(row.tokens) < params.min_tokens else set()
    if params.long_bad_words:
        banned |= _ends_of_bad_words(row)
    if banned:
        changes.append(forbid(banned))
    changes += [change for edit in params.chain.edits if (change := edit.change(row)) is not None]
    return changes


def _ends_of_bad_words(row: SampledRow) -> set[int]:
    words = row.params.long_bad_words
    recent = history(row, max(map(len, words)) - 1).tolist()
    return {word[-1] for word in words if recent[-len(word) + 1 :] == list(word[:-1])}
