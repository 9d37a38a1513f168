"""Reasoning: the reasoning of a completion, told apart from its answer by the model's tags."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from operators.engine.backend.interface import Model, TokenIds, inspect_model
from operators.engine.sequence.sequence import Sequence, StopWatcher
from operators.generation.sampling_params import token_ids
from operators.prompts.reasoning import Tags, tags_in
from operators.settings import ModelSettings
from operators.settings.checks import read_text

_TAIL_TOKENS = 64
"""Tokens at the end of a prompt that may hold an opening tag and white space."""


def reasoning_tags(settings: ModelSettings) -> Tags | None:
    """Return the tags of a model that need not be loaded; None if it does not reason.

    Raises:
        ConfigError, InputError: see inspect_model.
    """
    if settings.reasoning_tags is not None:
        return Tags(*settings.reasoning_tags) if settings.reasoning_tags else None
    if settings.chat_template is not None:
        return tags_in(read_text(settings.chat_template, "model.chat_template"))
    return tags_in(inspect_model(settings).chat_template)


@dataclass(frozen=True)
class Split:
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
        self.opening_ids = token_ids(model, tags.opening.encode())
        self.closing_ids = token_ids(model, tags.closing.encode())
        plain_ids = token_ids(model, tags.plain.encode())
        self._controls = {
            token: b"\xff%d\xff" % token
            for token in (*self.opening_ids, *self.closing_ids, *plain_ids)
            if not self._pieces[token]
        }
        self.opening, self.closing = self.marked(self.opening_ids), self.marked(self.closing_ids)
        self._plain = self.marked(plain_ids)

    def marked(self, tokens: Seq[int]) -> bytes:
        """Return the bytes of tokens, with those of control tokens of tags."""
        controls, pieces = self._controls, self._pieces
        return b"".join([controls.get(token) or pieces[token] for token in tokens])

    def begins_within(self, prompt: TokenIds) -> bool:
        """Return whether a completion of `prompt` begins with reasoning: the prompt ends with the opening tag."""
        return bool(self.opening) and self.marked(prompt[-_TAIL_TOKENS:].tolist()).rstrip().endswith(
            self.opening.rstrip()
        )

    def split(self, row: Sequence) -> Split:
        """Return the parts of a finished row, up to its stop string."""
        text = self._drawn(row)
        begin = self._begin(text, within=self.begins_within(row.prompt))
        end = -1 if begin is None else text.find(self.closing, begin)
        if begin is None or (end < 0 and not self.opening):
            behind = len(self._plain) if self._plain and text.startswith(self._plain) else 0
            return Split(None, 0, self._text(text[behind:]))
        last = len(text) if end < 0 else end
        starts, at = 0, 0
        for token in row.tokens:
            starts += begin <= at < last
            at += len(self._controls.get(token) or self._pieces[token])
        answer = b"" if end < 0 else text[end + len(self.closing) :]
        return Split(self._text(text[begin:last]), starts, self._text(answer))

    def _drawn(self, row: Sequence) -> bytes:
        """Return the marked bytes of a row up to its stop string."""
        if row.stops is None:
            return self.marked(row.tokens)
        watcher = StopWatcher(row.stops.stops, self._pieces, row.stops.keep)
        for token in row.tokens:
            watcher.feed(token)
        room = len(watcher.text) if watcher.cut is None else watcher.cut
        made = bytearray()
        for token in row.tokens:
            piece = self._pieces[token][:room]
            made += self._controls.get(token) or piece
            room -= len(piece)
        return bytes(made)

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
