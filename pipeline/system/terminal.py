"""Print to stdout, whose reader may have closed it (`... | head`), and to stderr: without the control characters that
texts of rows and of strangers' templates may have."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

_silent = ContextVar("silent", default=False)
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys instead of showing it: C0 but tab and line feed, DEL, C1, separators of lines, and what turns
the direction of a text; and half characters, which cannot be printed."""


def visible(text: str) -> str:
    """Return `text` with escapes such as `\\x1b` for what a terminal would obey; tabs and line feeds stay."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def complain(text: str) -> None:
    """Print `text` on stderr."""
    _print(text, sys.stderr)


def _print(text: str, stream: TextIO) -> None:
    encoding = stream.encoding or "utf-8"
    print(visible(text).encode(encoding, "backslashreplace").decode(encoding), file=stream)


def say(lines: Iterable[str]) -> None:
    """Print `lines`. A closed pipe is no error: it does not change how a run ends."""
    if _silent.get():
        return
    try:
        for line in lines:
            _print(line, sys.stdout)
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
