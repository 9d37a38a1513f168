"""Print to stdout, whose reader may have closed it (`... | head`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pipeline.system.known_secrets import hidden

_silent = ContextVar("silent", default=False)


def say(lines: Iterable[str]) -> None:
    """Print `lines`. A closed pipe is no error: it does not change how a run ends."""
    if _silent.get():
        return
    try:
        for line in lines:
            print(hidden(line))
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()


@contextmanager
def silent() -> Iterator[None]:
    """Have `say` print nothing during the block."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def silence_stdout() -> None:
    """Redirect stdout to /dev/null, so that the flush at interpreter exit does not fail again.

    Source: docs.python.org, module signal, "Note on SIGPIPE".
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
