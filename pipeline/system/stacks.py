"""Stacks of the threads of this process, for the log of a run that does not move."""

from __future__ import annotations

import sys
import threading
import traceback


def stacks() -> str:
    """Return the stack of every thread of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()  # the only way to another thread's stack
    )
