"""SIGINT and SIGTERM during a run."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pipeline.errors import ExitCode

_FIRST = b"\nstopping: finishing the step; the same command resumes. Press Ctrl-C again to leave at once\n"
_SECOND = b"\nleft at once; what was committed is safe, and the same command resumes\n"


@contextmanager
def stopped_by_signals(interrupt: Callable[[], None]) -> Iterator[None]:
    """Inside the block, SIGINT and SIGTERM call `interrupt`, and a second SIGINT ends the process with exit code 4.

    Outside the main thread, where Python allows no handlers, it changes nothing.
    """
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            _say(_SECOND)
            os._exit(ExitCode.INTERRUPTED)
        if not asked:
            asked = True
            _say(_FIRST)
            interrupt()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: bytes) -> None:
    # Not print: the signal may have come in the middle of one, and a stream cannot be entered twice.
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text)
