"""Draft what came next where the last tokens stood before.

In the row's own prompt and completion, or in the completions of rows of its node that have ended. The idea is that of
prompt lookup decoding (Saxena 2023): answers quote their prompts, and those to one template resemble each other.

A text is a str here, with a character for each token: Python finds the last place of some tokens in 4,000 of them in
3 microseconds, without an index that a long prompt would have to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

from operators.engine.backend.interface import TokenIds
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import NodeQueue
from operators.engine.strategies.speculative.draft_length import Kind

LENGTHS = (3, 2, 1)
"""Tokens that have to be equal: it looks for the longest match, and first in the row's own text."""
LONGEST = LENGTHS[0]
MOST_TOKENS = 1 << 13
"""Tokens of the latest completions to remember for a node."""


class Draft(NamedTuple):
    """The `tokens` that may come next, and their `kind`."""

    tokens: Seq[int]
    kind: Kind


NOTHING = Draft((), ("nothing", 0))


@dataclass(slots=True, eq=False)
class DraftedRow(Sequence):
    """A sequence with its text for lookups.

    Attributes:
        rate: how often its latest drafted tokens were right, 0 to 1; None: there were none.
        text: its prompt and the beginning of its completion; empty before the first lookup.
    """

    rate: float | None = field(default=None, init=False)
    text: str = field(default="", init=False)

    def whole_text(self) -> str:
        """Return its prompt and completion so far."""
        self.text = self.text or _characters(self.prompt)
        if drawn := self.tokens[len(self.text) - len(self.prompt) :]:
            self.text += "".join(map(chr, drawn))
        return self.text


class PromptLookup:
    """Makes drafts for the rows of one context."""

    def __init__(self) -> None:
        self._completions: dict[NodeQueue | None, str] = {}

    def drafts(self, rows: Seq[DraftedRow], most: Seq[int]) -> list[Draft]:
        """Return a draft for each of `rows`, of at most so many tokens; an empty one where nothing is found."""
        return [self._draft(row, count) if count > 0 else NOTHING for row, count in zip(rows, most, strict=True)]

    def ended(self, row: DraftedRow) -> None:
        """Remember the completion of `row`, with the end of its prompt, for other rows of its node."""
        text = _characters(row.prompt[-LONGEST:]) + "".join(map(chr, row.tokens))
        self._completions[row.owner] = (self._completions.get(row.owner, "") + text)[-MOST_TOKENS:]
        row.text = ""

    def _draft(self, row: DraftedRow, most: int) -> Draft:
        whole, others = row.whole_text(), self._completions.get(row.owner, "")
        for matched in LENGTHS:
            last = whole[-matched:]
            if text := _after(last, whole):
                again = -(-most // len(text))  # a text that repeats itself goes on as it did
                return Draft(list(map(ord, (text * again)[:most])), ("own", matched))
            if text := _after(last, others):
                return Draft(list(map(ord, text[:most])), ("others", matched))
        return NOTHING


def _characters(tokens: TokenIds) -> str:
    return tokens.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _after(last: str, text: str) -> str:
    """Return what comes in `text` after the latest place of `last` that is not its end; empty if there is none."""
    at = text.rfind(last, 0, -1)
    return text[at + len(last) :] if at >= 0 else ""
