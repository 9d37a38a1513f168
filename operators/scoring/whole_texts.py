"""Compute whole texts, several per call, for models whose tokens see all of their text, and for classifier heads.

The bits of a text may not depend on its neighbours. A call computes attention over all its tokens, with those of other
texts masked: they add exact zeros, but where a text lies decides which numbers are added to which. llama.cpp adds them
STEP at a time, and with flash attention TILE keys at a time. So a text of more than TILE tokens begins with a tile. A
shorter one lies within a tile and, by its length alone, either begins at a multiple of STEP or ends at one: so two of
them can meet, and little is filled in. What stays free has a token that is a text of its own. A call has whole tiles,
since with fewer tokens than one llama.cpp takes another kernel; and a classifier head reads two rows or more, for the
same reason.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

import numpy as np

from operators.engine.backend.interface import Encoder, Logits, TokenIds
from operators.engine.backend.shape import Wanted
from operators.scoring.prefix_tree import Text
from operators.scoring.text_batches import Part, whole_calls
from operators.settings.checks import usable_cores
from operators.settings.runtime import EngineSettings

TILE, STEP = 64, 16
CALL_TOKENS = 256
"""Tokens of a call, if the longest text is not longer. The cost of a mask grows with their square."""
CONTEXT_TOKENS = 1 << 15
"""Most tokens of the calls of all contexts together: each has memory for its own."""
_FILL = np.zeros(TILE, np.int32)


@dataclass(slots=True)
class TextCall:
    """The texts of a call.

    Args:
        spans: consecutive tokens: each a text, or what fills a gap.
        numbers: of each span the number of its text; -1 for a gap.
        end: the number of tokens.
    """

    spans: list[TokenIds] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    end: int = 0

    def add(self, ids: TokenIds, number: int, start: int) -> None:
        """Add a text that begins at `start`."""
        self.fill(start)
        self.spans.append(ids)
        self.numbers.append(number)
        self.end += len(ids)

    def fill(self, end: int) -> None:
        """Fill the call up to `end`, by TILE tokens at most."""
        if end > self.end:
            self.spans.append(_FILL[: end - self.end])
            self.numbers.append(-1)
            self.end = end


class Waiting:
    """The texts that are in no call yet, by their lengths."""

    def __init__(self, lengths: Seq[int]) -> None:
        self._left = len(lengths)
        self._long = sorted((n, i) for i, n in enumerate(lengths) if n > TILE)
        self._short: list[list[int]] = [[] for _ in range(TILE + 1)]
        for i, n in enumerate(lengths):
            if n <= TILE:
                self._short[n].append(i)

    def __bool__(self) -> bool:
        return self._left > 0

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return self._long[-1][0] if self._long else max(n for n, texts in enumerate(self._short) if texts)

    def take(self, end: int, limit: int) -> tuple[int, int] | None:
        """Take the text that is best put behind `end` tokens, into a call of `limit`; return its number and the token
        at which it begins. None: none fits."""
        tile = -(-end // TILE) * TILE
        step = -(-end // STEP) * STEP
        for start in range(end, step):  # texts that end with a step, as near as possible
            for length in range(tile - start, 0, -STEP):
                if not _begins_with_a_step(length) and self._short[length]:
                    return self._taken(length, start)
        if step < tile:
            return self._within(step, tile) or self.take(tile, limit)
        at = bisect_right(self._long, (limit - tile, math.inf))
        if at:
            self._left -= 1
            return self._long.pop(at - 1)[1], tile
        return self._within(tile, tile + TILE) if tile < limit else None

    def _within(self, start: int, end: int) -> tuple[int, int] | None:
        """Take a short text that goes between a multiple of STEP and the end of a tile: the one that leaves least of it
        free, together with another one behind it."""
        short = self._short
        for free in range(end - start):
            for length in range(end - start - free, 0, -1):
                rest = end - start - free - length
                pair = _begins_with_a_step(length) and short[rest] and not _begins_with_a_step(rest)
                if short[length] and (not rest or pair):
                    return self._taken(length, start if _begins_with_a_step(length) else start + -length % STEP)
        return None

    def _taken(self, length: int, start: int) -> tuple[int, int]:
        self._left -= 1
        return self._short[length].pop(), start


def _begins_with_a_step(length: int) -> bool:
    """Return whether a text of at most TILE tokens begins at a multiple of STEP; else it ends at one."""
    return length % STEP <= STEP // 2


class WholeTexts:
    """Reads texts as `DecoderReader` does, with encoders; a text has one part, with Wanted.HEAD of one row.

    Each encoder computes in a thread of its own; `close` ends the threads.

    Attributes:
        decoded: tokens computed so far, fillings among them.
    """

    def __init__(self, encoders: Seq[Encoder], wanted: Wanted) -> None:
        self._encoders = encoders
        self._head = wanted is Wanted.HEAD
        self._packs = encoders[0].packs
        self._threads = ThreadPoolExecutor(len(encoders), "encoder")
        self.decoded = 0

    def read(self, texts: Seq[Text]) -> Iterator[list[Part]]:
        """Yield the outputs of call after call, while the other encoders compute the next ones."""
        calls = self.calls([text.ids for text in texts])
        running: deque[tuple[TextCall, Encoder, Future[Logits]]] = deque()

        def start(encoder: Encoder) -> None:
            if call := next(calls, None):
                running.append((call, encoder, self._threads.submit(encoder.encode, call.spans)))

        try:
            for encoder in self._encoders:
                start(encoder)
            while running:
                call, encoder, outputs = running[0]
                rows = outputs.result()
                running.popleft()
                self.decoded += sum(map(len, call.spans))
                yield self._parts(call, rows)
                start(encoder)
        finally:
            wait([outputs for _, _, outputs in running])

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def _parts(self, call: TextCall, rows: Logits) -> list[Part]:
        """Return the outputs of the texts of a call."""
        parts, at = [], 0
        for i, (ids, number) in enumerate(zip(call.spans, call.numbers, strict=True)):
            if number >= 0 and self._head:
                parts.append(Part([number], len(ids) - 1, rows[i : i + 1]))
            elif number >= 0:
                parts.append(Part([number], 0, rows[at : at + len(ids)]))
            at += len(ids)
        return parts

    def calls(self, texts: Seq[TokenIds]) -> Iterator[TextCall]:
        """Yield the calls for texts; each begins with the longest text that is left."""
        waiting = Waiting([len(ids) for ids in texts])
        while waiting:
            call, limit = TextCall(), max(CALL_TOKENS, -(-waiting.longest // TILE) * TILE)
            while placed := waiting.take(call.end, limit):
                number, start = placed
                call.add(texts[number], number, start)
                if not self._packs:
                    break
            call.fill(-(-call.end // TILE) * TILE)
            if len(call.spans) == 1 and self._head:
                call.fill(call.end + STEP)
            yield call


def most_tokens(longest: int) -> int:
    """Return the tokens of a call for texts of at most `longest`, with room for a filling behind that."""
    return max(CALL_TOKENS, -(-longest // TILE) * TILE) + TILE


def encoder_settings(settings: EngineSettings, longest: int, *, on_cpu: bool) -> tuple[EngineSettings, int]:
    """Return the settings of the contexts of encoders, each for one row as long as a call, and how many there are.

    On the CPU there is a context for each core, within CONTEXT_TOKENS: threads of one call wait for each other at every
    matrix, which costs 7 to 25% of the time here (docs/encoders.md).
    """
    count = most_tokens(longest)
    cores = settings.threads or usable_cores()
    contexts = max(1, min(cores, CONTEXT_TOKENS // count)) if on_cpu else 1
    each = whole_calls(settings.with_defaults(), 1, count)
    return replace(each, threads=cores // contexts), contexts
