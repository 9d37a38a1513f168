"""Prints on stdout, where nobody may be reading any more: `... | head` closes the pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable


def say(lines: Iterable[str]) -> None:
    """Print `lines`; those that nobody reads are dropped. How a run ends does not depend on who listens."""
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()


def silence_stdout() -> None:
    """Redirect stdout to /dev/null; else the interpreter's last flush would fail again.

    Source: docs.python.org, module signal, "Note on SIGPIPE".
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
