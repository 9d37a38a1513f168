"""Lookup: drafts what came next where the last tokens stood before.

In the row's own prompt and completion, or in the completions of rows whose prompts begin alike. The idea is that of
prompt lookup decoding (Saxena 2023): answers quote, and objects of one shape repeat their keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

from operators.engine.sequence import Sequence

LONG, SHORT = 3, 2
"""Tokens that have to be equal: first it looks for as many, then for fewer."""
BEGINNING = 16
"""Tokens with which prompts have to begin alike for their completions to be looked up together."""
MOST_TEXTS = 8
"""Beginnings to remember; the oldest goes first."""
MOST_TOKENS = 1 << 15
"""Tokens of completions to remember for a beginning; then they are gathered anew."""
_BITS = 20
_MASKS = {n: (1 << _BITS * n) - 1 for n in (LONG, SHORT)}


class Draft(NamedTuple):
    """The `tokens` that may come next; `matched`: how many before them were found equal."""

    tokens: Seq[int]
    matched: int


NOTHING = Draft((), 0)


class NGrams:
    """A growing text, and where each of its n-grams stood last.

    Attributes:
        tokens: of the text.
        last: its last LONG tokens as one number, as `find` takes it.
    """

    __slots__ = ("_after", "last", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.last = 0
        self._after: dict[int, dict[int, int]] = {n: {} for n in (LONG, SHORT)}

    def extend(self, tokens: Iterable[int]) -> None:
        """Append `tokens`."""
        text, last = self.tokens, self.last
        long, short = self._after[LONG], self._after[SHORT]
        for token in tokens:
            long[last], short[last & _MASKS[SHORT]] = len(text), len(text)
            text.append(token)
            last = (last << _BITS | token) & _MASKS[LONG]
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
        self._completions: dict[bytes, NGrams] = {}

    def drafts(self, rows: Seq[DraftedRow], most: Seq[int]) -> list[Draft]:
        """Return a draft for each of `rows`, of at most so many tokens; an empty one where nothing is found."""
        return [self._draft(row, count) if count > 0 else NOTHING for row, count in zip(rows, most, strict=True)]

    def ended(self, row: DraftedRow) -> None:
        """Remember the completion of `row`, with the end of its prompt, for rows whose prompts begin alike."""
        key = _beginning(row)
        texts = self._completions.get(key)
        if texts is None or len(texts.tokens) > MOST_TOKENS:
            self._completions.pop(key, None)
            texts = self._completions[key] = NGrams()
            if len(self._completions) > MOST_TEXTS:
                del self._completions[next(iter(self._completions))]
        texts.extend(row.prompt[-LONG:].tolist())
        texts.extend(row.tokens)

    def _draft(self, row: DraftedRow, most: int) -> Draft:
        own, others = row.text(), self._completions.get(_beginning(row))
        for matched in (LONG, SHORT):
            if len(own.tokens) >= matched:
                for texts in (own, others):
                    if texts is not None and (tokens := texts.find(own.last, matched, most)):
                        return Draft(tokens, matched)
        return NOTHING


def _beginning(row: Sequence) -> bytes:
    return row.prompt[:BEGINNING].tobytes()
