"""Lookup: drafts what came next where the last tokens stood before.

In the row's own prompt and completion, or in the completions of rows of its node that have ended. The idea is that of
prompt lookup decoding (Saxena 2023): answers quote their prompts, and those to one template resemble each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import NodeQueue

LENGTHS = (3, 2, 1)
"""Tokens that have to be equal: it looks for the longest match, and first in the row's own text."""
LONGEST = LENGTHS[0]
MOST_TOKENS = 1 << 15
"""Tokens of completions to remember for a node; then they are gathered anew."""
_BITS = 20
_MASKS = {n: (1 << _BITS * n) - 1 for n in LENGTHS}


class Draft(NamedTuple):
    """The `tokens` that may come next; `matched`: how many before them were found equal."""

    tokens: Seq[int]
    matched: int


NOTHING = Draft((), 0)


class NGrams:
    """A growing text, and where each of its n-grams stood last.

    Attributes:
        tokens: of the text.
        last: its last LONGEST tokens as one number, as `find` takes it.
    """

    __slots__ = ("_after", "last", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.last = 0
        self._after: dict[int, dict[int, int]] = {n: {} for n in LENGTHS}

    def extend(self, tokens: Iterable[int]) -> None:
        """Append `tokens`."""
        text, last = self.tokens, self.last
        (three, two, one), (all_bits, two_bits, one_bits) = self._after.values(), _MASKS.values()
        for token in tokens:
            three[last] = two[last & two_bits] = one[last & one_bits] = len(text)
            text.append(token)
            last = (last << _BITS | token) & all_bits
        self.last = last

    def find(self, last: int, matched: int, most: int) -> Seq[int]:
        """Return at most `most` tokens that came after the latest n-gram that equals the last `matched` of `last`."""
        at = self._after[matched].get(last & _MASKS[matched])
        return () if at is None else self.tokens[at : at + most]


@dataclass(slots=True, eq=False)
class DraftedRow(Sequence):
    """A sequence with its text for lookups.

    Attributes:
        rate: how often its latest drafted tokens were right, 0 to 1; None: there were none.
    """

    rate: float | None = field(default=None, init=False)
    _text: NGrams | None = field(default=None, init=False)

    def text(self) -> NGrams:
        """Return its prompt and completion so far."""
        if self._text is None:
            self._text = NGrams()
            self._text.extend(self.prompt.tolist())
        self._text.extend(self.tokens[len(self._text.tokens) - len(self.prompt) :])
        return self._text


class Lookup:
    """Makes drafts for the rows of one context."""

    def __init__(self) -> None:
        self._completions: dict[NodeQueue | None, NGrams] = {}

    def drafts(self, rows: Seq[DraftedRow], most: Seq[int]) -> list[Draft]:
        """Return a draft for each of `rows`, of at most so many tokens; an empty one where nothing is found."""
        return [self._draft(row, count) if count > 0 else NOTHING for row, count in zip(rows, most, strict=True)]

    def ended(self, row: Sequence) -> None:
        """Remember the completion of `row`, with the end of its prompt, for other rows of its node."""
        texts = self._completions.get(row.owner)
        if texts is None or len(texts.tokens) > MOST_TOKENS:
            texts = self._completions[row.owner] = NGrams()
        texts.extend(row.prompt[-LONGEST:].tolist())
        texts.extend(row.tokens)

    def _draft(self, row: DraftedRow, most: int) -> Draft:
        own, others = row.text(), self._completions.get(row.owner)
        for matched in LENGTHS:
            if tokens := own.find(own.last, matched, most):
                return Draft(tokens, matched)
            if others is not None and (tokens := others.find(own.last, matched, most)):
                return Draft(tokens, matched)
        return NOTHING
