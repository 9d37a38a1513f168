"""A heap of rows that leave in any order gives the first of those that wait, and does not grow with those that left."""

from __future__ import annotations

import random

from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import Order, RowHeap
from tests.operators.engine.fixtures import prompts, sequences

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
