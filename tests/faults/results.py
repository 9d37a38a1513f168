"""What a run has left on disk, and whether it is what it says."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.cli.verify import main as verify
from tests.pipeline.squares import files

__all__ = ["files"]


def rows_of(directory: Path) -> list[int]:
    """The source rows that are in data/ or in rejects/, with repeats."""
    shards = [p for folder in ("data", "rejects") for p in sorted((directory / folder).glob("*.parquet"))]
    return [row for shard in shards for row in pq.read_table(shard, columns=["row"])["row"].to_pylist()]


def lost_and_doubled(directory: Path, rows: int) -> tuple[int, int]:
    """How many of `rows` source rows are nowhere, and how many are there more than once."""
    found = Counter(rows_of(directory))
    return len(set(range(rows)) - found.keys()), sum(n - 1 for n in found.values())


def query(database: Path, text: str) -> list[tuple[Any, ...]]:
    """What `text` selects from a database that nobody has open, or whose process died. Leaves it as it is.

    Nothing where there is no such database or table yet.
    """
    with copy_of(database) as copy, closing(sqlite3.connect(copy)) as connection:
        try:
            return connection.execute(text).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise


@contextmanager
def copy_of(database: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        for path in database.parent.glob(f"{database.name}*"):
            if not path.name.endswith("-shm"):  # an index, which is made anew
                shutil.copyfile(path, Path(folder) / path.name)
        yield Path(folder) / database.name


def committed_shards_are_whole(directory: Path) -> int:
    """Check every file that state.sqlite names, and that no other has a final name and is half; returns how many."""
    for path in (directory / "data").rglob("*.parquet"):
        assert pq.read_metadata(path).num_rows >= 0, path  # it has a footer
    shards = query(directory / "state.sqlite", "SELECT path, sha256 FROM shards")
    for path, digest in shards:
        assert hashlib.sha256((directory / path).read_bytes()).hexdigest() == digest, path
    return len(shards)


def says_that_all_is_whole(directory: Path) -> bool:
    """Whether `verify` finds nothing damaged; asked of a copy, since looking at a database mends it."""
    if not (directory / "state.sqlite").exists():  # nothing was begun
        return True
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(directory, Path(folder) / "out")
        return verify([str(Path(folder) / "out")]) == 0


def nothing_is_left_over(directory: Path) -> bool:
    """Whether no temporary file and no stream of a metrics table outlived the run."""
    streams = [p for p in (directory / "metrics").iterdir() if p.is_dir()]
    return not streams and not list(directory.rglob("*.tmp"))
