"""The window of open chunks."""

from __future__ import annotations

import threading

from pipeline.chunks import ChunkWindow
from pipeline.meter import StageMeter


def test_a_chunk_is_held_back_until_an_earlier_one_is_committed():
    window, meter, began = ChunkWindow(2), StageMeter("source"), threading.Event()
    window.begin(0, meter)
    window.begin(1, meter)

    def third() -> None:
        window.begin(2, meter)
        began.set()

    thread = threading.Thread(target=third)
    thread.start()
    assert not began.wait(0.1)
    window.committed(0)
    assert began.wait(10)
    thread.join()
