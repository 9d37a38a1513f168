"""Deadlines: what does not return does not hold the run, and what does not end does not hold the process.

`within` bounds a step of an ending; `leave_after` and `last_exit` are what is left when even that is not enough.
`stacks` says where the threads of a run stand that does not move.
"""

from __future__ import annotations

import atexit
import contextvars
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from pipeline.api.errors import PipelineError
from pipeline.system.signals import SIGNALS, may_leave, stopping, tell

T = TypeVar("T")
ENDING_S = 1800.0
"""Seconds that a step of an ending may take in a job without `runtime.stall_timeout_s`."""
LEAST_S = 20.0
"""Seconds that it has at least, however short that is."""
GRACE_S = 20.0
"""Seconds that a step of an ending may take once SIGINT or SIGTERM has come."""
EXIT_S = 15.0
"""Seconds that threads, child processes and exit handlers of user code have when the process ends."""
POLL_S = 0.1
log = logging.getLogger(__name__)


class Overran(PipelineError):
    """A step of an ending has not ended in its time; it is left behind in its thread."""


def within(limit_s: float, what: str, do: Callable[[], T], moved: Callable[[], object] = lambda: None) -> T:
    """Return what `do` returns, or raise what it raises. It runs in a thread of its own, which is left behind if it
    does not end in time.

    Args:
        limit_s: seconds since the step began, or since `moved` last returned another value.
        what: the step, for the message.

    Raises:
        Overran: it did not end. The stacks of all threads are in the log.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            results.append(do())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), name=what, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads: without a limit, rather than not at all
        return do()
    thread.join(POLL_S)
    since, progress, hurried = time.monotonic(), moved(), None
    while thread.is_alive():
        now, last, progress = time.monotonic(), progress, moved()
        since = since if progress == last else now
        hurried = hurried or (now if stopping() else None)
        if now - since >= limit_s or (hurried is not None and now - hurried >= GRACE_S):
            late = f"{what} has not ended after {now - (hurried or since):.3g} s"
            log.error("%s\n\n%s", late, stacks(), extra={"only": "file"})
            raise Overran(f"{late}; run.log says where every thread stood")
        thread.join(POLL_S)
    if failures:
        raise failures[0]
    return results[0]


def leave_after(seconds: float, code: int, why: str, first: Callable[[], object] = lambda: None) -> Callable[[], None]:
    """End the process with `code` in `seconds`, unless the function that is returned is called before. `first` is
    called then, and has EXIT_S. A process that is not this project's alone (a notebook) is never ended."""
    ended = threading.Event()

    def wait() -> None:
        if ended.wait(seconds) or not may_leave():
            return
        tell(why)
        helper = threading.Thread(target=first, name="last words", daemon=True)
        helper.start()
        helper.join(EXIT_S)
        os._exit(code)

    threading.Thread(target=wait, name="deadline", daemon=True).start()
    return ended.set


def last_exit() -> Callable[[int], None]:
    """Return a function that ends the process with a code. To be called before anything else is imported: then what
    others do when a process ends is done first, within EXIT_S. Nothing that fails there changes the code, nor does a
    signal: all is recorded."""
    codes: list[int] = []

    def last() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        if codes:
            os._exit(codes[0])

    def end(code: int) -> None:
        codes.append(code)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        leave_after(EXIT_S, code, "left at once: threads or child processes of an operator do not end")
        sys.exit(code)

    atexit.register(last)
    return end


def stacks() -> str:
    """Return the stack of every thread of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()  # the only way to another thread's stack
    )
