"""SpecialTokens: tells the control tokens that a template writes from their names in the text of rows.

The text of a row is text: `<|im_end|>` in a prompt is these ten characters and ends no turn. A text comes as a pair: as
it is, and *marked*, with MARK in place of the first character of every name that is text. What is left unmarked is the
template's, and is read with special tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

MARK = "\ufdd0"
"""Stands for one character. Unicode keeps it for the inside of programs (a noncharacter); a text may hold it as well,
where nothing is marked by it: it is compared with the text as it is."""
_ESCAPED_MARK = "\\ufdd0"
"""The mark in JSON of ASCII, which a template can write."""
NAMES_CHANGED = (
    "the template changes the name of a control token in the text of the row, so that nobody can tell it from its own;"
    " take it out of the row, or set model.special_tokens_in_text=parse"
)
"""Reason of a reject."""
HAS_NAMES = (
    "the text has names of control tokens, which are read as text; model.special_tokens_in_text=parse reads them as"
    " tokens"
)
"""What is told of a row."""
_WHITESPACE = " \t\n\v\f\r"
"""What C's isspace takes for white space."""
_END = ""
"""Key of the tree of names: a name ends here."""


@dataclass(frozen=True)
class SpecialToken:
    """A token that stands for a text of its own, whatever is around it.

    Args:
        id: its id.
        text: its name.
        is_control: a control token, or the unknown one: no text for a model's users. Else its makers defined it as a
            text that is always one token (`<think>`), which it stays in texts of rows, as in llama.cpp.
        always_read: it is read in any text, control token or not (`<|end|>` of gpt-oss).
        strips_left, strips_right: white space before and behind it goes.
    """

    id: int
    text: str
    is_control: bool = True
    always_read: bool = False
    strips_left: bool = False
    strips_right: bool = False


Tokenize = Callable[[str], Sequence[int]]
"""Tokenizes a text without BOS, in which names of control tokens are text."""


class SpecialTokens:
    """The special tokens of a vocabulary."""

    def __init__(self, tokens: Sequence[SpecialToken]) -> None:
        named = [token for token in tokens if token.text]
        self.texts: Mapping[int, str] = {token.id: token.text for token in named}
        self._in_order = sorted(named, key=lambda token: len(token.text.encode()), reverse=True)  # as llama.cpp does
        controls = [token.text for token in named if token.is_control]
        self._firsts = sorted({text[0] for text in controls})
        tree: dict[str, Any] = {}
        for text in controls:
            node = tree
            for character in text:
                node = node.setdefault(character, {})
            node[_END] = {}
        self._begun = re.compile(_alternatives(tree, r"\Z|")) if controls else None
        """Finds the names of control tokens, and what a text ends with that begins one."""
        self._names = re.compile(_alternatives(tree, "")) if controls else None
        always = [re.escape(token.text) for token in named if token.is_control and token.always_read]
        self._always = re.compile("|".join(always)) if always else None
        self.some_always_read = bool(always)

    @classmethod
    def like(cls, names: re.Pattern[str]) -> SpecialTokens:
        """Return the special tokens of a vocabulary that nobody lists, whose names are `names`."""
        tokens = cls(())
        tokens._begun = tokens._names = names
        return tokens

    def without(self, names: Collection[str]) -> SpecialTokens:
        """Return these tokens, of which the controls of some `names` are none."""
        return SpecialTokens([replace(t, is_control=t.is_control and t.text not in names) for t in self._in_order])

    def mark(self, value: Any) -> Any:
        """Return a value (texts, in lists and mappings) in which every name of a control token is marked, and the
        beginning of one at the end of a text; the same object if there is none."""
        if isinstance(value, str):
            return self._marked(value)
        if isinstance(value, Mapping):
            marked = {self.mark(key): self.mark(inner) for key, inner in value.items()}
            pairs = zip(marked.items(), value.items(), strict=False)
            return marked if any(a is not c or b is not d for (a, b), (c, d) in pairs) else value
        if isinstance(value, list | tuple):
            items = [self.mark(item) for item in value]
            return type(value)(items) if any(a is not b for a, b in zip(items, value, strict=True)) else value
        return value

    def has_name(self, text: str) -> bool:
        """Return whether `text` has the name of a control token."""
        return self._names is not None and self._names.search(text) is not None

    def is_name(self, text: str, place: int) -> bool:
        """Return whether the name of a control token begins at a character of `text`."""
        return self._names is not None and self._names.match(text, place) is not None

    def places(self, text: str, marked: str) -> list[int] | None:
        """Return the characters of `text` at which a name begins that is text; None if `marked`, which the same
        template made, is another text, so that nobody can tell."""
        if len(marked) != len(text):
            marked = marked.replace(_ESCAPED_MARK, MARK)
        pairs = list(zip(marked, text, strict=False))
        if len(marked) == len(text) and all(m in (t, MARK) or m.lower() == t.lower() for m, t in pairs):
            return [i for i, (m, t) in enumerate(pairs) if m == MARK != t and self.is_name(text, i)]
        count = [
            sum(isinstance(p, SpecialToken) and p.is_control for p in self._pieces(each)) for each in (text, marked)
        ]
        return [] if count[0] == count[1] else None  # the template took the names out, or escaped them

    def ids(self, text: str, marked: str, tokenize: Tokenize) -> npt.NDArray[np.int32]:
        """Return the int32 ids of `text` without BOS: control tokens that are not `marked`, and texts between them."""
        marks = (t for t, m in zip(text, marked, strict=True) if m == MARK)
        ids: list[int] = []
        for piece in self._pieces(marked):
            if isinstance(piece, SpecialToken):
                ids.append(piece.id)
                continue
            for part in self._apart(re.sub(MARK, lambda _: next(marks), piece), piece):
                ids += tokenize(part)
        return np.array(ids, np.int32)

    def _marked(self, text: str) -> str:
        if self._begun is None or (self._firsts and not any(first in text for first in self._firsts)):
            return text
        places, at = [], 0
        while (match := self._begun.search(text, at)) is not None:
            places.append(match.start())
            at = match.start() + 1
        return with_marks(text, places)

    def _pieces(self, text: str) -> list[SpecialToken | str]:
        """Cut a text at its special tokens, the longest first: llama.cpp's tokenizer_st_partition."""
        pieces: list[SpecialToken | str] = [text] if text else []
        for token in self._in_order:
            if token.text in text:
                pieces = [each for piece in pieces for each in _cut(piece, token)]
        return pieces

    def _apart(self, text: str, marked: str) -> Iterator[str]:
        """Cut a text behind each mark at which a token stands that llama.cpp reads in any text."""
        start = 0
        for match in self._always.finditer(text) if self._always is not None else ():
            if marked[match.start()] == MARK:
                yield text[start : match.start() + 1]
                start = match.start() + 1
        yield text[start:]


def with_marks(text: str, places: Sequence[int]) -> str:
    """Return `text` with a mark at each of `places`; the same object for none."""
    if not places:
        return text
    characters = list(text)
    for place in places:
        characters[place] = MARK
    return "".join(characters)


def _cut(piece: SpecialToken | str, token: SpecialToken) -> Iterator[SpecialToken | str]:
    if isinstance(piece, SpecialToken):
        yield piece
        return
    parts = piece.split(token.text)
    for i, part in enumerate(parts):
        if i:
            yield token
            part = part.lstrip(_WHITESPACE) if token.strips_right else part
        if token.strips_left and i + 1 < len(parts):
            part = part.rstrip(_WHITESPACE)
        if part:
            yield part


def _alternatives(node: dict[str, Any], at_end: str) -> str:
    """Return a pattern for the names below `node`; the shortest will do. `at_end`: what else fits within a name."""
    return "|".join(
        re.escape(character) + ("" if _END in child else f"(?:{at_end}{_alternatives(child, at_end)})")
        for character, child in node.items()
    )
