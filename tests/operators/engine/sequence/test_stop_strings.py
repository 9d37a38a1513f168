"""Stop strings, also when they are split over tokens, and characters that are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from operators.engine.sequence import StopWatcher

BYTES = [bytes([i]) for i in range(256)]


def feed(watcher: StopWatcher, tokens: list[int]) -> int | None:
    """Index of the token at which the watcher stopped."""
    return next((i for i, token in enumerate(tokens) if watcher.feed(token)), None)


@given(st.text("abé", max_size=12), st.lists(st.text("abé", min_size=1, max_size=3), min_size=1, max_size=3))
def test_found_as_soon_as_it_is_complete_and_cut_at_its_first_byte(text, stops):
    raw, wanted = text.encode(), [s.encode() for s in stops]
    watcher = StopWatcher(wanted, BYTES)
    at = feed(watcher, list(raw))
    ends = [i + 1 for i in range(len(raw)) if any(raw[: i + 1].endswith(w) for w in wanted)]
    if not ends:
        assert at is None
        assert watcher.cut is None
    else:
        assert at == ends[0] - 1
        seen = raw[: ends[0]]
        assert watcher.cut == min(seen.find(w) for w in wanted if w in seen)


def test_a_piece_that_holds_more_than_the_stop_string():
    watcher = StopWatcher([b"\n\n"], [b"Hello", b"!\n", b"\nNext"])
    assert feed(watcher, [0, 1, 2]) == 2
    assert bytes(watcher.text[: watcher.cut]) == b"Hello!"
