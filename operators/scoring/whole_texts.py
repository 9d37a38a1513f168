"""Compute whole texts, several per call, for models whose tokens see all of their text, and for classifier heads.

The bits of a text may not depend on its neighbours. A call computes attention over all its tokens, with those of other
texts masked: they add exact zeros, but where a text begins decides which numbers are added to which. llama.cpp adds
them 16 at a time, and with flash attention TILE keys at a time. So a text of up to TILE tokens lies within a tile,
beginning at a multiple of STEP; a longer one begins with a tile, and the end of its last tile takes shorter texts.
What stays free is filled with a token that is a text of its own. A call has whole tiles, since with fewer tokens than
one llama.cpp takes another kernel; and a classifier head reads two rows or more, for the same reason.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import numpy as np

from operators.engine.backend.interface import Encoder, TokenIds, Wanted
from operators.scoring.prefix_tree import Text
from operators.scoring.text_batches import Part
from operators.settings.runtime import EngineSettings

TILE, STEP = 64, 16
CALL_TOKENS = 256
"""Tokens of a call, if the longest text is not longer. The cost of a mask grows with their square."""
_FILL = np.zeros(TILE, np.int32)


@dataclass(slots=True)
class Call:
    """The texts of a call.

    Args:
        spans: consecutive tokens: each a text, or what fills a gap.
        numbers: of each span the number of its text; -1 for a gap.
    """

    spans: list[TokenIds] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    @property
    def texts(self) -> int:
        """Number of its texts."""
        return sum(number >= 0 for number in self.numbers)

    def add(self, ids: TokenIds, number: int, room: int) -> None:
        """Add a text, and fill what it leaves of `room` up to the next STEP."""
        self.spans.append(ids)
        self.numbers.append(number)
        self.fill(-len(ids) % STEP if room > len(ids) else 0)

    def fill(self, count: int) -> None:
        """Add a gap of fewer than TILE tokens."""
        if count:
            self.spans.append(_FILL[:count])
            self.numbers.append(-1)


class WholeTexts:
    """Reads texts as `Reader` does, with an encoder; a text has one part, with Wanted.HEAD of one row.

    Attributes:
        decoded: tokens computed so far, fillings among them.
    """

    def __init__(self, encoder: Encoder, wanted: Wanted) -> None:
        self._encoder = encoder
        self._head = wanted is Wanted.HEAD
        self.decoded = 0

    def read(self, texts: Seq[Text]) -> Iterator[list[Part]]:
        """Make a call for each item that is asked for; yield its outputs."""
        for call in self.calls([text.ids for text in texts]):
            rows = self._encoder.encode(call.spans)
            self.decoded += sum(map(len, call.spans))
            parts, at = [], 0
            for i, (ids, number) in enumerate(zip(call.spans, call.numbers, strict=True)):
                if number >= 0 and self._head:
                    parts.append(Part([number], len(ids) - 1, rows[i : i + 1]))
                elif number >= 0:
                    parts.append(Part([number], 0, rows[at : at + len(ids)]))
                at += len(ids)
            yield parts

    def calls(self, texts: Seq[TokenIds]) -> Iterator[Call]:
        """Yield the calls for texts; each begins with the longest text that is left."""
        left = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        lengths = [len(texts[i]) for i in left]

        def take(room: int) -> int | None:
            """Take the longest text of at most `room` tokens."""
            at = bisect_right(lengths, room)
            if not at:
                return None
            del lengths[at - 1]
            return left.pop(at - 1)

        while left:
            call, tiles, longest = Call(), 0, lengths[-1]
            most = max(CALL_TOKENS, -(-longest // TILE) * TILE) // TILE
            most_texts = len(texts) if self._encoder.packs else 1
            while tiles < most and call.texts < most_texts and (number := take((most - tiles) * TILE)) is not None:
                count = len(texts[number])
                used = -(-count // TILE)
                room = used * TILE - count
                tiles += used
                call.add(texts[number], number, used * TILE)
                room -= room % STEP
                while room and call.texts < most_texts and (number := take(room)) is not None:
                    call.add(texts[number], number, room)
                    room -= -(-len(texts[number]) // STEP) * STEP
                call.fill(room)
            if len(call.spans) == 1 and self._head:
                call.fill(STEP)
            yield call


def most_tokens(longest: int) -> int:
    """Return the tokens of a call for texts of at most `longest`, with room for a filling behind that."""
    return max(CALL_TOKENS, -(-longest // TILE) * TILE) + TILE


def encoder_settings(settings: EngineSettings, longest: int) -> EngineSettings:
    """Return `settings` for the memory of an encoder: one row, as long as a call."""
    count = most_tokens(longest)
    return replace(
        settings.with_defaults(),
        slots=1,
        n_batch=count,
        n_ubatch=count,
        kv="per_sequence",
        n_ctx=None,
        admission="reserve",
        refill=1,
        contexts=1,
    )
