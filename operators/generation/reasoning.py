"""Reasoning: the reasoning of a completion, told apart from its answer by the model's tags."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from operators.engine.backend.interface import Model, TokenIds
from operators.engine.backend.loading import template_of
from operators.engine.sequence.sequence import Sequence, StopWatcher
from operators.generation.sampling_params import token_ids
from operators.prompts.reasoning import Tags, tags_in
from operators.settings import ModelSettings

_TAIL_TOKENS = 64
"""Tokens at the end of a prompt that may hold an opening tag and white space."""


def reasoning_tags(settings: ModelSettings) -> Tags | None:
    """Return the tags of a model that need not be loaded; None if it does not reason. Raises ConfigError or InputError:
    see template_of."""
    if settings.reasoning_tags is not None:
        return Tags(*settings.reasoning_tags) if settings.reasoning_tags else None
    return tags_in(template_of(settings))


@dataclass(frozen=True)
class CompletionParts:
    """A completion in its parts. With the tags between them these are the text that was drawn.

    Args:
        reasoning: None: there is none.
        tokens: tokens that begin in the reasoning.
        answer: empty if the text was cut within the reasoning.
    """

    reasoning: str | None
    tokens: int
    answer: str


class Reasoning:
    """Finds the tags of a model in prompts and completions.

    A tag may consist of control tokens, which add no text. So it is looked for among the bytes of tokens in which each
    control token of a tag has bytes that no text has.
    """

    def __init__(self, model: Model, tags: Tags) -> None:
        self._pieces = model.pieces()
        self.tags = tags
        self.opening_ids = token_ids(model, tags.opening.encode())
        self.closing_ids = token_ids(model, tags.closing.encode())
        plain_ids, next_ids = (token_ids(model, text.encode()) for text in (tags.plain, tags.next))
        self._controls = {
            token: b"\xff%d\xff" % token
            for token in (*self.opening_ids, *self.closing_ids, *plain_ids, *next_ids)
            if not self._pieces[token]
        }
        self.opening, self.closing = self.marked(self.opening_ids), self.marked(self.closing_ids)
        self._plain, self._next = self.marked(plain_ids), self.marked(next_ids)

    def marked(self, tokens: Seq[int]) -> bytes:
        """Return the bytes of tokens, with those of control tokens of tags."""
        controls, pieces = self._controls, self._pieces
        return b"".join([controls.get(token) or pieces[token] for token in tokens])

    def begins_within(self, prompt: TokenIds) -> bool:
        """Return whether a completion of `prompt` begins with reasoning: the prompt ends with the opening tag."""
        return bool(self.opening) and self.marked(prompt[-_TAIL_TOKENS:].tolist()).rstrip().endswith(
            self.opening.rstrip()
        )

    def split(self, row: Sequence) -> CompletionParts:
        """Return the parts of a finished row, up to its stop string."""
        text = drawn(row, self._pieces, lambda token: self._controls.get(token) or self._pieces[token])
        begin = self._begin(text, within=self.begins_within(row.prompt))
        end, behind = (-1, 0) if begin is None else end_of_reasoning(text, begin, self.closing, self._next)
        if begin is None or (end < 0 and not self.opening):
            skipped = len(self._plain) if self._plain and text.startswith(self._plain) else 0
            return CompletionParts(None, 0, self._text(text[skipped:]))
        last = len(text) if end < 0 else end
        starts, at = 0, 0
        for token in row.tokens:
            starts += begin <= at < last
            at += len(self._controls.get(token) or self._pieces[token])
        return CompletionParts(self._text(text[begin:last]), starts, self._text(b"" if end < 0 else text[behind:]))

    def _begin(self, text: bytes, *, within: bool) -> int | None:
        """Return where the reasoning begins in `text`; None if it has none."""
        if within:
            return 0
        skipped = len(text) - len(text.lstrip())
        return skipped + len(self.opening) if text.startswith(self.opening, skipped) else None

    def _text(self, marked: bytes) -> str:
        for control in self._controls.values():
            marked = marked.replace(control, b"")
        return marked.decode("utf-8", "replace")


def drawn(row: Sequence, pieces: Seq[bytes], bytes_of: Callable[[int], bytes]) -> bytes:
    """Return what was drawn of a finished row, up to its stop string.

    Args:
        pieces: the bytes of tokens as they stand in texts.
        bytes_of: the bytes of a token here, which may differ for control tokens.
    """
    if row.stops is None:
        return b"".join(map(bytes_of, row.tokens))
    watcher = StopWatcher(row.stops.stops, pieces, row.stops.keep)
    for token in row.tokens:
        watcher.feed(token)
    room = len(watcher.text) if watcher.cut is None else watcher.cut
    made = bytearray()
    for token in row.tokens:
        piece = pieces[token][:room]
        made += piece if pieces[token] else bytes_of(token)
        room -= len(piece)
    return bytes(made)


def end_of_reasoning(text: bytes, begin: int, closing: bytes, following: bytes) -> tuple[int, int]:
    """Return where the reasoning of `text` ends, and where what follows begins; -1 and 0 if it does not end.

    Args:
        closing: stands between reasoning and answer.
        following: what else may follow reasoning, a tool call, begins with it; empty: nothing else.
    """
    end = text.find(closing, begin)
    if end >= 0:
        return end, end + len(closing)
    end = text.find(following, begin) if following else -1
    if end < 0 or closing.startswith(text[end:]):
        return -1, 0
    return end, end + len(following)
