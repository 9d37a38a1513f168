"""Print to stdout and stderr, whose reader may have gone (`... | head`) and whose disk may be full (`> job.log`).

Neither changes how a run ends: what cannot be written is dropped. Nor are control characters printed, which texts of
rows and of strangers' templates may have.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TextIO

from pipeline.system.known_secrets import hidden

_silent = ContextVar("silent", default=False)
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys instead of showing it: C0 but tab and line feed, DEL, C1, separators of lines, and what turns
the direction of a text; and half characters, which cannot be printed."""

_UNWRITABLE = (OSError, ValueError, AttributeError)
"""Raised where nothing can be written: the disk is full or the reader has gone, the stream is closed or not there."""


def visible(text: str) -> str:
    """Return `text` without secrets, and with escapes such as `\\x1b` for what a terminal would obey; tabs and line
    feeds stay."""
    return _OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode(), hidden(text))


def complain(text: str) -> None:
    """Print `text` on stderr."""
    _print(text, sys.stderr)


def _print(text: str, stream: TextIO) -> None:
    try:
        encoding = stream.encoding or "utf-8"
        print(visible(text).encode(encoding, "backslashreplace").decode(encoding), file=stream)
    except _UNWRITABLE:
        silence(stream)


def say(lines: Iterable[str]) -> None:
    """Print `lines`, or drop them."""
    if _silent.get():
        return
    for line in lines:
        _print(line, sys.stdout)
    _Dropping(sys.stdout).flush()


def terminal_width() -> int | None:
    """Return the number of characters of a line of the terminal that stdout is; None if it is none."""
    try:
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    except _UNWRITABLE:
        return None


@contextmanager
def silent() -> Iterator[None]:
    """Have `say` print nothing during the block."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


class _Dropping:
    """A text stream that drops what cannot be written; all else is that of `stream`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except _UNWRITABLE:
            silence(self._stream)
            return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except _UNWRITABLE:
            silence(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def dropping(*names: str) -> Iterator[None]:
    """Have sys.stdout and sys.stderr, those of them that are named, drop what cannot be written during the block, by
    whomever: progress bars, handlers of logs, warnings, operators that print."""
    with ExitStack() as after:
        for name in names:
            stream = getattr(sys, name)
            setattr(sys, name, _Dropping(stream))
            after.callback(setattr, sys, name, stream)
            after.callback(getattr(sys, name).flush)
        yield


def open_closed_streams() -> None:
    """Open /dev/null as the standard streams that were closed (`>&- 2>&-`). Else the next file that is opened would get
    their numbers, and what is printed would be written into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            stream = open(number, "r" if number == 0 else "w", closefd=False)  # noqa: SIM115 - for as long as we live
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def silence(stream: TextIO) -> None:
    """Redirect `stream` to /dev/null, so that the flush at interpreter exit does not fail again.

    Source: docs.python.org, module signal, "Note on SIGPIPE".
    """
    with suppress(OSError, ValueError, AttributeError):  # a stream of a notebook has no number
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
