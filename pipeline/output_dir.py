"""Which files in an output directory are ours, and which of them may go."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.failpoints import Failpoint, reached
from pipeline.lock import LOCK_FILE
from pipeline.state import STATE_FILE

DATA, REJECTS, METRICS = "data", "rejects", "metrics"
RUN_LOG, CONFIG, MANIFEST, STATUS, REPORT = "run.log", "config.yaml", "manifest.json", "status.json", "report.html"

CHOICES = "autotune.json"
"""What an operator chose by measuring, so that a resumed run does the same."""

_PART = re.compile(r"part-\d+\.\w+(\.tmp)?")
_OURS = (RUN_LOG, CONFIG, MANIFEST, STATUS, REPORT, CHOICES, STATE_FILE, f"{STATE_FILE}-wal", f"{STATE_FILE}-shm")


def refuse_foreign(directory: Path) -> None:
    """Keep out of directories that hold something else.

    Raises:
        ConfigError: `directory` is a file, or is not empty and has no state.sqlite.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise ConfigError(f"output_dir={directory} is a file; give a directory")
    found = {entry.name for entry in directory.iterdir()} - {LOCK_FILE}
    if found and STATE_FILE not in found:
        raise ConfigError(
            f"{directory} holds files that are not a run's (for example {min(found)}); give an empty output_dir="
        )


def wipe(directory: Path) -> None:
    """Remove what a run wrote, but for its finished completions: they are keyed by content and never wrong."""
    remove_parts(directory, keep=())
    shutil.rmtree(directory / METRICS, ignore_errors=True)
    for name in _OURS:
        (directory / name).unlink(missing_ok=True)


def remove_parts(directory: Path, keep: Collection[str]) -> int:
    """Remove the shards that are not in `keep` (paths relative to `directory`). Returns how many.

    A killed run leaves shards under temporary names, or renamed and not committed.
    """
    gone = 0
    for folder in (directory / DATA, directory / REJECTS):
        for path in sorted(folder.rglob("part-*")):
            if _PART.fullmatch(path.name) and path.relative_to(directory).as_posix() not in keep:
                path.unlink()
                gone += 1
                reached(Failpoint.LEFTOVER_REMOVED)
    return gone
