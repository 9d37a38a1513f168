"""TableReader: reads a second table, in all formats and from all places that the rows of a job may come from."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from operators.settings.table import TableSettings, in_words_of_table, of_table
from operators.sources.read_prompts import ReadPrompts
from pipeline.api import Batch, InputError, ListInbox, Rejects, Runtime
from pipeline.api.records import ROW, SUPERSEDES

DONE = "done"
"""The status of a run in manifest.json when it is."""


class TableReader:
    """Reads a table as ReadPrompts reads the rows of a job, but whole: a row that cannot be read is an error. Its
    columns may be named `row` and `lineage`, as those of the results of a run are.

    Raises:
        InputError: what ReadPrompts raises; or the run that it is the directory of is not done.
    """

    def __init__(self, settings: TableSettings) -> None:
        paths = settings.path
        if isinstance(paths, list):
            paths = [_rows_of_run(path) for path in paths]
        elif paths is not None:
            paths = _rows_of_run(paths)
        self._rows = _TableRows(replace(settings, path=paths), chunk_rows=sys.maxsize)

    def columns(self) -> pa.Schema:
        """Return the columns of the table."""
        with of_table():
            return pa.schema(list(self._rows.plan())[:-1])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the table, in order. Raises InputError for one that cannot be read, or that a newer one
        supersedes."""
        columns = self.columns()
        with of_table():
            for item in self._rows.run(ListInbox()):
                if isinstance(item, Rejects):
                    first = item.rows[0]
                    raise InputError(
                        f"{first.file}, line {first.line}: {first.reason}; a table has no rejects: mend the line, or"
                        " take it out"
                    )
                if isinstance(item, Batch):
                    self._rows.note(what for _, what in item.told)
                    batch = pa.RecordBatch.from_arrays(item.data.columns[:-1], schema=columns)
                    _refuse_older_rows(batch)
                    yield batch

    def open(self, runtime: Runtime) -> None:
        """Log the size of the table, and warnings. Raises InputError if a file is not what it was when the run was
        planned."""
        with of_table():
            self._rows.open(runtime)

    def fingerprint(self) -> dict[str, Any]:
        """Return the content of the files, as ReadPrompts does."""
        with of_table():
            return self._rows.fingerprint()


class _TableRows(ReadPrompts):
    """The rows of a table; the column `row`, which comes last, is no column of it."""

    reserved = ()

    def note(self, warnings: Iterable[str]) -> None:
        """Keep warnings for `open`, each once."""
        self._warnings += [warning for warning in dict.fromkeys(warnings) if warning not in self._warnings]

    def open(self, runtime: Runtime) -> None:
        self._warnings = [in_words_of_table(warning) for warning in self._warnings]
        super().open(runtime)


def _rows_of_run(path: str) -> str:
    """Return the folder with the rows of a run, if `path` is its directory; else `path`."""
    directory = Path(path).expanduser()
    try:
        manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return path
    if not isinstance(manifest, dict) or "shards" not in manifest or not (directory / "data").is_dir():
        return path
    if (status := manifest.get("status")) != DONE:
        raise InputError(
            f"the run in {path} is not done ({status}); end it first, or read what it has by now: {path}/data"
        )
    return str(directory / "data")


def _refuse_older_rows(batch: pa.RecordBatch) -> None:
    names = batch.schema.names
    if ROW.name in names and SUPERSEDES.name in names and batch.column(SUPERSEDES.name).null_count < batch.num_rows:
        raise InputError(
            "the table has newer and older versions of rows (column 'supersedes', append_changed=again); write the"
            " newest into a file: pipeline.load(DIR).rows().sink_parquet('newest.parquet')"
        )
