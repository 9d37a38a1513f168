"""Changes of single logits: biases, bans (bad words; the end before `min_tokens`) and penalties."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from operators.engine.backend.interface import TokenIds
from operators.engine.sampling.candidates import Flags, Floats, Ids

if TYPE_CHECKING:
    from operators.engine.sampling.row_state import SampledRow


@dataclass(frozen=True, eq=False)
class Change:
    """New logits for some tokens of a row.

    Args:
        ids: int64 [n], rising, no repeats.
        biases: float32 [n], added to the logits; -inf forbids a token.
        repetition: a positive logit is divided by it, another one multiplied, before the bias is added.
    """

    ids: Ids
    biases: Floats
    repetition: float = 1.0

    def apply(self, logits: Floats, which: Ids | slice) -> Floats:
        """Return the new values of `logits`, float32 [m], the logits of the tokens `ids[which]`."""
        if self.repetition != 1:
            logits = np.where(logits <= 0, logits * self.repetition, logits / self.repetition)
        return logits + self.biases[which]


def forbid(ids: Iterable[int]) -> Change:
    """Return a change after which none of `ids` can be drawn."""
    rising = np.unique(np.array(list(ids), np.int64))
    return Change(rising, np.full(len(rising), -np.inf, np.float32))


class Patch:
    """The logits of a row after its changes, where these differ from the model's.

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
        """Overwrite `values`, the logits of `ids`, where this has others."""
        at, patched = find(self.ids, ids)
        values[patched] = self.values[at[patched]]


def find(rising: Ids, wanted: Ids) -> tuple[Ids, Flags]:
    """Return the index in `rising` (not empty) of each of `wanted`, and a mask of those that are there."""
    at = np.minimum(np.searchsorted(rising, wanted), len(rising) - 1)
    return at, rising[at] == wanted


def history(row: SampledRow, last: int | None) -> TokenIds:
    """Return the last tokens of prompt and completion, oldest first; None: all. Cells of images are no tokens."""
    drawn = np.array(row.tokens if last is None else row.tokens[-last:], np.int32)
    prompt, room = row.prompt, len(row.prompt) if last is None else last - len(drawn)
    if (prompt[max(len(prompt) - room, 0) :] < 0).any():
        prompt = prompt[prompt >= 0]
    return np.concatenate([prompt[max(len(prompt) - room, 0) :], drawn])


def changes_of(row: SampledRow) -> list[Change]:
    """Return the changes of `row` before any other step: bias, bans, and the penalties that lead the chain."""
    params = row.params
    changes: list[Change] = [] if params.bias is None else [params.bias]
    if banned := _banned_here(row):
        changes.append(forbid(banned))
    changes += [change for edit in params.chain.edits if (change := edit.change(row)) is not None]
    return changes


def is_forbidden(row: SampledRow, token: int) -> bool:
    """Return whether bias or bans forbid `token` as the next one of `row`, whatever its logit."""
    return token in row.params.forbidden or token in _banned_here(row)


def _banned_here(row: SampledRow) -> set[int]:
    """Return the tokens that are forbidden at this step and may not be at others."""
    banned = set(row.params.end_ids) if len(row.tokens) < row.params.min_tokens else set()
    return banned | _ends_of_bad_words(row) if row.params.long_bad_words else banned


def _ends_of_bad_words(row: SampledRow) -> set[int]:
    words = row.params.long_bad_words
    recent = history(row, max(map(len, words)) - 1).tolist()
    return {word[-1] for word in words if recent[-len(word) + 1 :] == list(word[:-1])}
