"""SIGINT and SIGTERM, from the first line of the command to its last: exit code 4, and the same command resumes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pipeline.errors import ExitCode

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STEP = "finishing the step; the same command resumes. Press Ctrl-C again to leave at once"
RECORDS = "recording the results, which is short. Press Ctrl-C again to leave at once"
NOTHING_RUNS = "the same command begins or resumes the run"
_SECOND = "left at once; what was committed is safe, and the same command resumes"

_answers: list[Callable[[], None]] = []
"""What the blocks of `stopped_by_signals` do about a signal, the innermost last. Handlers are the process's anyway."""
_received = 0


@contextmanager
def stopped_by_signals(interrupt: Callable[[], None], what: str = STEP) -> Iterator[None]:
    """Inside the block, the first SIGINT or SIGTERM says `what` is done about it and calls `interrupt`; a SIGINT after
    that ends the process with exit code 4.

    Blocks may be nested: the innermost answers, also to a signal that came before it. Outside the main thread, where
    Python allows no handlers, it changes nothing.
    """
    global _received

    def answer() -> None:
        _say(f"stopping: {what}")
        interrupt()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outermost, before = not _answers, {}
    _answers.append(answer)
    try:
        if outermost:
            _received = 0
            before = {number: signal.signal(number, _handle) for number in SIGNALS}
        elif _received:
            interrupt()
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _answers.pop()


def signals_received() -> int:
    """How many of these signals came since the outermost block was entered."""
    return _received


def leave_on_signals() -> None:
    """From now on, outside any block of `stopped_by_signals`, these signals end the process with exit code 4: for a
    process that has begun nothing, or is through."""

    def leave(number: int, frame: FrameType | None) -> None:
        _say(f"stopped: {NOTHING_RUNS}")
        os._exit(ExitCode.INTERRUPTED)

    for number in SIGNALS:
        signal.signal(number, leave)


def _handle(number: int, frame: FrameType | None) -> None:
    global _received
    _received += 1
    if _received == 1:
        _answers[-1]()
    elif number == signal.SIGINT:
        _say(_SECOND)
        os._exit(ExitCode.INTERRUPTED)


def _say(text: str) -> None:
    # Not print: the signal may have come in the middle of one, and a stream cannot be entered twice.
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"\n{text}\n".encode())
