"""Logging of a run: to run.log and to the terminal."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from pipeline.monitor.display import TerminalHandler
from pipeline.run_dir.names import RUN_LOG
from pipeline.system.disk_errors import storage_error, writing
from pipeline.system.known_secrets import hidden
from pipeline.system.terminal import complain, visible

FILE_ONLY, TERMINAL_ONLY = {"only": "file"}, {"only": "terminal"}
"""`extra` of a log call whose line goes to run.log only, or to the terminal only."""


class _Visible(logging.Formatter):
    """Formats without control characters, and indents all lines but the first: no message can look like another."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record)).replace("\n", "\n  ")


class _OneLine(logging.Formatter):
    """Formats the message without its traceback, which is in run.log."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return visible(level + record.getMessage())


class _Json(logging.Formatter):
    """Formats a JSON object per line: time, level, logger, message, and the fields of a progress line."""

    def format(self, record: logging.LogRecord) -> str:
        values: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields: dict[str, object] | None = getattr(record, "fields", None)
        values |= {"message": record.getMessage()} if fields is None else {"message": "progress", **fields}
        texts = {name: hidden(value) if isinstance(value, str) else value for name, value in values.items()}
        return json.dumps(texts)


class _File(logging.FileHandler):
    """Writes run.log. If that fails, the run continues and one warning is printed."""

    _has_warned = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_warned:
            self._has_warned = True
            complain(f"warning: {storage_error(Path(self.baseFilename), error)}")

    def close(self) -> None:
        with suppress(OSError):  # closing retries the write that failed
            super().close()


@contextmanager
def run_log(directory: Path, progress: str) -> Iterator[None]:
    """Append everything that is logged inside the block to run.log, and show it on stderr.

    Args:
        progress: the setting. With none, stderr shows only warnings; with json, JSON objects.

    Raises:
        StorageError: run.log cannot be opened.
    """
    with writing(directory / RUN_LOG):
        file = _File(directory / RUN_LOG, encoding="utf-8")
    formatter = _Visible("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    file.setFormatter(formatter)
    terminal = TerminalHandler(logging.WARNING if progress == "none" else logging.INFO)
    terminal.setFormatter(_Json() if progress == "json" else _OneLine())
    file.addFilter(lambda record: getattr(record, "only", "file") == "file")
    terminal.addFilter(lambda record: getattr(record, "only", "terminal") == "terminal")
    root, ours = logging.getLogger(), logging.getLogger("pipeline")
    levels = root.level, ours.level
    root.setLevel(logging.INFO)
    ours.setLevel(logging.DEBUG)
    for handler in (file, terminal):
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in (file, terminal):
            root.removeHandler(handler)
        file.close()
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
