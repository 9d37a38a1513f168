"""The tree of the texts of a batch: what several of them begin with is one piece, computed once.

The bits of a text may not depend on the texts that share its beginning. So the parts of texts are cut, and shared, as
the scheduler does with prompts (Chunking in operators/engine/scheduler/step_batch.py;
tests/operators/llama/test_reading.py). What two texts have in common beyond that is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np

from operators.engine.backend.interface import TokenIds
from operators.engine.scheduler.radix_tree import common_length
from operators.engine.scheduler.step_batch import Chunking, next_piece

WORTH_SHARING = 32
"""Fewest tokens that texts with different heads share: a call of their own and a copy of the slot cost about that."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text to read.

    Args:
        ids: its tokens.
        first: the first token whose output is wanted.
        head: tokens that are computed as if they were the whole text, and what follows them as another one, so that
            texts with the same head share it whole; 0: the text has one part. A head of one token is none, since no
            token is computed alone.
    """

    ids: TokenIds
    first: int = 0
    head: int = 0

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The first token and the end of the head, and of what follows it."""
        return [(0, self.head), (self.head, len(self.ids))] if self.head > 1 else [(0, len(self.ids))]

    @property
    def key(self) -> list[bytes]:
        """Orders texts so that those which begin alike are neighbours."""
        return [self.ids[start:end].astype(">i4").tobytes() for start, end in self.parts]


@dataclass(eq=False, slots=True)
class TokenSpan:
    """Consecutive tokens, computed in one call.

    Args:
        start: the position of the first token.
        ids: the tokens.
        least: fewest tokens of a piece of this part of the text.
        texts: the numbers of the texts that have it.
        left: the pieces that follow it and are not computed yet, longest last.
    """

    start: int
    ids: TokenIds
    least: int
    texts: list[int] = field(default_factory=list)
    left: list[TokenSpan] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


class Cuts:
    """The rule for cutting texts.

    Args:
        room: most tokens of a piece.
        chunking: the rule for the parts of texts.
        sharing: compute common beginnings once. Off for models whose state cannot be truncated.
    """

    def __init__(self, room: int, chunking: Chunking, *, sharing: bool) -> None:
        self._room, self._chunking, self._sharing = room, chunking, sharing

    def tree(self, texts: Seq[Text]) -> TokenSpan:
        """Return the root, an empty piece, of the tree of `texts`; each is a path from it."""
        root = TokenSpan(0, np.empty(0, np.int32), 1)
        pieces, path, previous = [root], [root], None
        for number in sorted(range(len(texts)), key=lambda i: texts[i].key):
            text = texts[number]
            path = self._up_to(path, 0 if previous is None else self._shared(previous, text), pieces)
            for start, end in text.parts:
                least = self._chunking.least(end - start)
                at = max(start, path[-1].end)
                while at < end:
                    count = next_piece(end - at, self._room, least)
                    piece = TokenSpan(at, text.ids[at : at + count], least)
                    path[-1].left.append(piece)
                    path.append(piece)
                    pieces.append(piece)
                    at = piece.end
            for piece in path:
                piece.texts.append(number)
            previous = text
        for piece in pieces:
            piece.left.sort(key=lambda piece: len(piece.ids))
        return root

    def _shared(self, previous: Text, text: Text) -> int:
        """Return how many tokens of `text` may be taken from `previous`."""
        if not self._sharing:
            return 0
        count = 0
        for (start, end), (_, other_end) in zip(text.parts, previous.parts, strict=False):
            part, other = text.ids[start:end], previous.ids[start:other_end]
            common = common_length(part, other)
            if common < end - start or end != other_end:
                common = self._chunking.shared(part, other, common)
                return count + common if start or common >= WORTH_SHARING else count
            count = end
        return count

    def _up_to(self, path: list[TokenSpan], count: int, pieces: list[TokenSpan]) -> list[TokenSpan]:
        """Return the beginning of `path` with `count` tokens, or with fewer where no piece may be cut there; cut the
        last piece."""
        path = [piece for piece in path if piece.start < count or piece.start == piece.end]
        last = path[-1]
        if last.end <= count:
            return path
        kept = min(count, last.end - last.least) - last.start
        if kept < last.least:
            return path[:-1]
        rest = TokenSpan(last.start + kept, last.ids[kept:], last.least, list(last.texts), last.left)
        last.ids, last.left = last.ids[:kept], [rest]
        pieces.append(rest)
        return path
