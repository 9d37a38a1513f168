"""SIGINT and SIGTERM, from the first line of the command to its last: exit code 4, and the same command resumes.

Signal handlers do nothing here. The interpreter writes the number of each signal into a pipe, even while the main
thread hangs in a lock or in a C call, and a thread that reads the pipe answers.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pipeline.api.errors import ExitCode

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STEP = "finishing the step; the same command resumes. Press Ctrl-C again to leave at once"
RECORDS = "recording the results, which is short. Press Ctrl-C again to leave at once"
NOTHING_RUNS = "the same command begins or resumes the run"
_SECOND = "left at once; what was committed is safe, and the same command resumes"

_blocks: list[tuple[Callable[[], None], str]] = []
"""For each open block of `stopped_by_signals`, the innermost last: its reaction to a signal, and what it says. Global,
as handlers are the process's anyway."""
_received = 0


@contextmanager
def stopped_by_signals(interrupt: Callable[[], None], what: str = STEP) -> Iterator[None]:
    """Answer signals inside the block: the first SIGINT or SIGTERM says `what` is done about it and calls `interrupt`,
    in a thread of its own; a SIGINT after that ends the process with exit code 4. `interrupt` returns at once: while it
    runs, no other signal is answered.

    Blocks may be nested: the innermost answers, also to a signal that came before it. Outside the main thread, where
    Python allows no handlers, it changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outermost = not _blocks
    _blocks.append((interrupt, what))
    try:
        if outermost:
            with _answering():
                yield
        else:
            if _received:
                interrupt()
            yield
    finally:
        _blocks.pop()


def signals_received() -> int:
    """Return how many of these signals came since the outermost block was entered."""
    return _received


def leave() -> None:
    """End the process with exit code 4."""
    os._exit(ExitCode.INTERRUPTED)


def leave_on_signals() -> None:
    """From now on, outside any block of `stopped_by_signals`, these signals end the process with exit code 4: for a
    process that has begun nothing, or is through."""

    def handle(number: int, frame: FrameType | None) -> None:
        _say(f"stopped: {NOTHING_RUNS}")
        leave()

    for number in SIGNALS:
        signal.signal(number, handle)


@contextmanager
def _answering() -> Iterator[None]:
    """Inside the block, a thread answers signals. All that came are answered when it is left."""
    global _received
    _received = 0
    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # as signal.set_wakeup_fd demands
    thread = threading.Thread(target=_answer, args=(reading,), name="signals", daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    # A handler must be there for the interpreter to write into the pipe.
    before = {number: signal.signal(number, lambda number, frame: None) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(writing)
        thread.join()
        os.close(reading)


def _answer(pipe: int) -> None:
    global _received
    while data := os.read(pipe, 1):
        if data[0] not in SIGNALS:  # others may have handlers of their own
            continue
        _received += 1
        if _received == 1:
            interrupt, what = _blocks[-1]
            _say(f"stopping: {what}")
            interrupt()
        elif data[0] == signal.SIGINT:
            _say(_SECOND)
            leave()


def _say(text: str) -> None:
    # Not print: the stream's lock may be held for good. Nor may a terminal or a pipe that takes nothing keep us.
    stderr = sys.__stderr__.fileno() if sys.__stderr__ else 2
    if select.select([], [stderr], [], 0)[1]:
        os.write(stderr, f"\n{text}\n".encode())


def _forget_in_child() -> None:
    # A forked process has no thread that answers, and would write into its parent's pipe.
    if _blocks:
        _blocks.clear()
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget_in_child)
