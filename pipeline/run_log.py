"""run.log, and what of it is shown on the terminal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.output_dir import RUN_LOG
from pipeline.progress import TerminalHandler


class _OneLine(logging.Formatter):
    """The message alone: tracebacks stand in run.log."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return level + record.getMessage()


@contextmanager
def run_log(directory: Path, progress: str) -> Iterator[None]:
    """Append everything that is logged inside the block to run.log; show it on stderr too, warnings only if quiet."""
    file = logging.FileHandler(directory / RUN_LOG, encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    terminal = TerminalHandler(logging.WARNING if progress == "none" else logging.INFO)
    terminal.setFormatter(_OneLine())
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
