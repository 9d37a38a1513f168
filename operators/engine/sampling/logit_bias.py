"""Tokens that may not come now: bad words, and the end before `min_tokens`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from operators.engine.sampling.logit_edits import Change, forbid
from operators.engine.sampling.step import history

if TYPE_CHECKING:
    from operators.engine.sequence import Sequence


def changes_of(row: Sequence) -> list[Change]:
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


def _ends_of_bad_words(row: Sequence) -> set[int]:
    words = row.params.long_bad_words
    recent = history(row, max(map(len, words)) - 1).tolist()
    return {word[-1] for word in words if recent[-len(word) + 1 :] == list(word[:-1])}
