"""Stop strings over bytes: found also when they are split over tokens, and tokens over characters."""

from __future__ import annotations

from collections.abc import Sequence


class StopWatcher:
    """Looks for any of `stops` in the bytes of a growing completion.

    Args:
        stops: what ends the completion, UTF-8; none of them empty.
        pieces: the bytes of every token id.
    """

    __slots__ = ("_longest", "_pieces", "cut", "stops", "text")

    def __init__(self, stops: Sequence[bytes], pieces: Sequence[bytes]) -> None:
        self.stops = stops
        self._pieces = pieces
        self._longest = max(map(len, stops))
        self.text = bytearray()
        self.cut: int | None = None
        """Where in `text` the completion ends, once a stop string was found."""

    def feed(self, token: int) -> bool:
        """Append a token; True when a stop string is complete. The leftmost one counts."""
        piece = self._pieces[token]
        start = max(0, len(self.text) - self._longest + 1)
        self.text += piece
        found = [at for stop in self.stops if (at := self.text.find(stop, start)) >= 0]
        if found:
            self.cut = min(found)
        return bool(found)
