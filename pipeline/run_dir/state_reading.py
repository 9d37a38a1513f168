"""Read the state of a run that others may write, without a change to its directory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pipeline.run_dir.lock import beside
from pipeline.run_dir.replacing import refuse_half_moved
from pipeline.run_dir.state import STATE_FILE, RunState


@contextmanager
def reading(directory: Path) -> Iterator[RunState]:
    """Yield the state of the run in `directory` as of one moment; an empty one if there is none. Nothing is written
    there, and a run that begins meanwhile waits.

    SQLite reads beside a run that works. A file that nobody has open may be read as it is; only where a killed run has
    left a log, which the first to open it would write into the file, a copy is read.

    Raises:
        ConfigError, DamagedError: as RunState; or the results are set aside.
    """
    refuse_half_moved(directory)
    path = directory / STATE_FILE
    log = path.with_name(f"{STATE_FILE}-wal")
    with beside(directory) as holder, tempfile.TemporaryDirectory(prefix="state-") as folder:
        source = f"{path.absolute().as_uri()}?mode=ro" + ("" if log.exists() else "&immutable=1")
        if (holder is None and log.exists()) or not path.is_file():
            for file in filter(Path.is_file, (path, log)):
                shutil.copyfile(file, Path(folder) / file.name)
            source = f"{(Path(folder) / STATE_FILE).as_uri()}?mode=rwc"
        with closing(RunState(path, source)) as state:
            yield state
