"""Stop strings, searched in bytes: found also if they are split over tokens, or characters are."""

from __future__ import annotations

from collections.abc import Sequence


class StopWatcher:
    """Looks for any of `stops` in the bytes of a growing completion.

    Args:
        stops: strings that end the completion, in UTF-8; none of them empty.
        pieces: the bytes of every token id.
        keep: the stop string becomes part of the completion.
    """

    __slots__ = ("_longest", "_pieces", "cut", "keep", "stops", "text")

    def __init__(self, stops: Sequence[bytes], pieces: Sequence[bytes], keep: bool = False) -> None:
        self.stops = stops
        self.keep = keep
        self._pieces = pieces
        self._longest = max(map(len, stops))
        self.text = bytearray()
        self.cut: int | None = None
        """The index in `text` at which the completion ends, once a stop string was found."""

    def feed(self, token: int) -> bool:
        """Append a token; return True if a stop string is complete. The leftmost counts, of two there the shorter."""
        piece = self._pieces[token]
        start = max(0, len(self.text) - self._longest + 1)
        self.text += piece
        found = [(at, at + len(stop)) for stop in self.stops if (at := self.text.find(stop, start)) >= 0]
        if found:
            at, end = min(found)
            self.cut = end if self.keep else at
        return bool(found)
