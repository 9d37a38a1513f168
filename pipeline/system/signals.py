"""SIGINT and SIGTERM end the process with exit code 4 at any time; the same command resumes.

The Python signal handlers are empty. The interpreter writes the number of each signal to a pipe (set_wakeup_fd), even
while the main thread is blocked in a lock or a C call, and a thread that reads the pipe reacts.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType

from pipeline.api.errors import ExitCode

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STEP = "finishing the step; the same command resumes. Press Ctrl-C again to leave at once"
RECORDS = "recording the results, which is short. Press Ctrl-C again to leave at once"
NOTHING_RUNS = "the same command begins or resumes the run"

_blocks: list[tuple[Callable[[], None], str]] = []
"""Callback and message of each open block of `stopped_by_signals`, innermost last. Global, as signal handlers are."""
_received = 0
_may_leave = True
_pipe: tuple[int, ...] = ()
"""Both ends of the pipe that signals are written to, of the outermost block."""
_KEPT_S = 0.01
_IGNORE = 1
"""SIG_IGN of C."""
_set_handler = ctypes.CDLL(None).signal
_set_handler.argtypes, _set_handler.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
_END = 0
"""Written to the pipe when the block is left; no signal has this number."""


@contextmanager
def stopped_by_signals(interrupt: Callable[[], None], what: str = STEP) -> Iterator[None]:
    """Handle signals inside the block: the first SIGINT or SIGTERM prints `what` and calls `interrupt` in another
    thread; a later SIGINT ends the process with exit code 4. `interrupt` must return at once, since no other signal is
    handled while it runs.

    In nested blocks the innermost handles a signal, also one that came before it was entered. Outside the main thread,
    where Python allows no signal handlers, the block does nothing.
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


def stopping() -> bool:
    """Return True if a signal has come and its block is still open."""
    return bool(_blocks and _received)


def may_leave() -> bool:
    """Return True if the process is this project's alone, and may be ended."""
    return _may_leave


def signals_received() -> int:
    """Return the number of signals since the outermost block was entered."""
    return _received


@contextmanager
def staying() -> Iterator[None]:
    """Have a second SIGINT not end the process during the block: it is not this project's alone."""
    global _may_leave
    before, _may_leave = _may_leave, False
    try:
        yield
    finally:
        _may_leave = before


def leave() -> None:
    """End the process with exit code 4."""
    os._exit(ExitCode.INTERRUPTED)


def leave_on_signals() -> None:
    """End the process with exit code 4 on any signal outside a block of `stopped_by_signals`: while it starts up, and
    after its work is done."""

    def handle(number: int, frame: FrameType | None) -> None:
        tell(f"stopped: {NOTHING_RUNS}")
        leave()

    for number in SIGNALS:
        signal.signal(number, handle)


def call_with_handlers_kept(call: Callable[[], object]) -> None:
    """Call `call` in a thread of its own, and keep the handlers of signals as they are meanwhile: a library sets others
    by C, from whatever thread, where Python may set none."""
    kept = {number: _set_handler(number, _IGNORE) for number in SIGNALS}  # the only way to ask for one
    _set_handlers(kept)
    thread = threading.Thread(target=call, name=getattr(call, "__name__", "call"))
    thread.start()
    is_over = False
    while not is_over:
        thread.join(_KEPT_S)
        is_over = not thread.is_alive()
        _set_handlers(kept)


def _set_handlers(handlers: Mapping[signal.Signals, int | None]) -> None:
    for number, handler in handlers.items():
        _set_handler(number, handler)


@contextmanager
def _answering() -> Iterator[None]:
    """Run the thread that handles signals during the block. On exit all pending signals are handled first."""
    global _received, _pipe
    _received = 0
    _pipe = reading, writing = os.pipe()
    os.set_blocking(writing, False)  # as signal.set_wakeup_fd demands
    thread = threading.Thread(target=_answer, args=(reading,), name="signals", daemon=True)
    thread.start()
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    # A handler must be there for the interpreter to write into the pipe.
    handlers = {number: signal.signal(number, lambda number, frame: None) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        # Not by closing the end that is written to: a forked process may have it, too, and lives as long as it likes.
        os.set_blocking(writing, True)
        os.write(writing, bytes([_END]))
        thread.join()
        _pipe = ()
        os.close(writing)
        os.close(reading)


def _answer(pipe: int) -> None:
    global _received
    while (data := os.read(pipe, 1)) and data[0] != _END:
        if data[0] not in SIGNALS:  # others may have handlers of their own
            continue
        _received += 1
        if _received == 1:
            interrupt, what = _blocks[-1]
            tell(f"stopping: {what}")
            interrupt()
        elif data[0] == signal.SIGINT and _may_leave:
            tell("left at once; what was committed is safe, and the same command resumes")
            leave()


def tell(text: str) -> None:
    """Write `text` to stderr, whatever holds that stream; it may be lost."""
    # Not print: a hung thread may hold the stream's lock. `select`: a terminal or pipe may accept no bytes.
    with suppress(OSError, ValueError, AttributeError):  # closed, without room, or not there: the signal counts
        stderr = sys.__stderr__.fileno()  # type: ignore[union-attr]
        if select.select([], [stderr], [], 0)[1]:
            os.write(stderr, f"\n{text}\n".encode())


def _forget_in_child() -> None:
    # A forked process has no thread that reads the pipe, and would write to its parent's.
    global _pipe
    for end in _pipe:
        os.close(end)
    _pipe = ()
    if _blocks:
        _blocks.clear()
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget_in_child)
