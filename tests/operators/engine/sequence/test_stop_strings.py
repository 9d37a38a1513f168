"""Stop strings, also when they are split over tokens, and the heap of rows that leave in any order."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from operators.engine.sequence import Sequence, StopWatcher
from operators.engine.sequence.placement import Order, RowHeap
from tests.operators.engine.fixtures import prompts, sequences

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


TEXT = prompts(1)[0]


def test_it_is_a_sorted_list_whatever_leaves():
    draw = random.Random(0)
    heap, waiting = RowHeap(), dict[Sequence, Order]()
    longest = 0
    for number in range(4000):
        if waiting and draw.random() < 0.5:
            row = draw.choice(list(waiting)) if draw.random() < 0.7 else min(waiting, key=waiting.__getitem__)
            del waiting[row]
            row.placement.queued = False
            heap.discard()
        else:
            (row,) = sequences([TEXT])
            row.placement.queued = True
            waiting[row] = (draw.randrange(3), float(draw.randrange(3)), draw.randrange(3), number)
            heap.push((waiting[row], row))
        first = heap.first()
        assert heap.count == len(waiting) == len(heap.rows())
        assert (first[1] if first else None) is min(waiting, key=waiting.__getitem__, default=None)
        longest = max(longest, len(waiting))
        assert len(heap._heap) <= 2 * longest + 100


def test_rows_that_left_are_forgotten_though_the_first_stays():
    heap = RowHeap()
    rows = sequences([TEXT] * 5000)
    for number, row in enumerate(rows):
        row.placement.queued = True
        heap.push(((0, 0.0, 0, number), row))
    for row in rows[1:]:
        row.placement.queued = False
        heap.discard()
    assert heap.first() == ((0, 0.0, 0, 0), rows[0])
    assert len(heap._heap) < 100
