"""Read a run directory: manifest, settings, rows, rejects and metrics.

Writes nothing, so a running run can be read too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.api.errors import ConfigError, PipelineError
from pipeline.api.meter import RowCounts
from pipeline.run_dir import metrics_files
from pipeline.run_dir.manifest import manifest, read_manifest, read_values
from pipeline.run_dir.names import CONFIG, DATA, METRICS, REJECTS, STATUS, near_run
from pipeline.run_dir.replacing import refuse_half_moved
from pipeline.run_dir.state import STATE_FILE
from pipeline.run_dir.state_reading import reading
from pipeline.settings import AGAIN
from pipeline.system.result_files import newest, scan
from pipeline.system.yaml_text import read_yaml


@dataclass(frozen=True, eq=False)
class Results:
    """The committed results of a run. `config`: empty if config.yaml is missing or damaged. `missing`: committed files
    that do not exist. `accounts`: row counts by node; empty if there is no state.sqlite, as in a copy of the results.
    `status`: the values of status.json; empty as `config` is. `run_id`: empty if neither says it."""

    directory: Path
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]
    missing: Sequence[str] = ()
    accounts: Mapping[str, RowCounts] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)
    run_id: str = ""

    @property
    def job(self) -> str:
        return str(self.manifest.get("job") or self.directory.name)

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts of rows: `source_rows`, `data_rows`, `error_rejects`, `filtered_rejects`, `kept_with_error`; and of
        `chunks`."""
        counts: Mapping[str, int] = self.manifest.get("counts", {})
        return counts

    @property
    def folders(self) -> list[str]:
        """Folders with rows, relative to the run directory: `data`, and `data/NAME` of a second sink."""
        return sorted({Path(s["path"]).parent.as_posix() for s in self._shards(DATA) if s["rows"]})

    def shards(self, folder: str) -> list[tuple[Path, int]]:
        """Return the committed files of `folder` in the order of their rows, each with its number of rows."""
        ordered = sorted(self._shards(folder), key=lambda s: s["chunk"])
        present = [s for s in ordered if s["path"] not in self.missing and Path(s["path"]).parent.as_posix() == folder]
        return [(self.directory / s["path"], s["rows"]) for s in present]

    def rows(self, folder: str, place: str | None = None) -> pl.LazyFrame | None:
        """Return all rows of a folder of data/, without those of which `append` has newer ones; None if there are none
        or their format is unknown. `place`: a column to add, with the position of each row in the files of `shards`."""
        rows = self.scanned(folder, [path for path, rows in self.shards(folder) if rows])
        rows = rows.with_row_index(place) if rows is not None and place else rows
        return newest(rows) if rows is not None and self.config.get("append_changed") == AGAIN else rows

    def scanned(self, folder: str, files: list[Path]) -> pl.LazyFrame | None:
        """Return the rows of some files of a folder; None if there are none or their format is unknown."""
        return scan(files, self.manifest.get("schema", {}).get(folder, {}))

    def tables(self) -> Iterator[tuple[pl.LazyFrame, str]]:
        """Yield the rows of each folder, with the text ` in FOLDER` if there are several folders."""
        for folder in self.folders:
            rows = self.rows(folder)
            if rows is not None:
                yield rows, f" in {folder}" if len(self.folders) > 1 else ""

    def rejects(self) -> pl.LazyFrame | None:
        return self.scanned(REJECTS, [path for path, _ in self.shards(REJECTS)])

    def metrics(self, name: str) -> pl.LazyFrame | None:
        """Return the metrics table `name` of all attempts, of one that works too; None if it is empty."""
        return metrics_files.scan(self.directory / METRICS, name)

    def _shards(self, folder: str) -> list[dict[str, Any]]:
        return [s for s in self.manifest.get("shards", []) if s["path"].startswith(f"{folder}/")]


def read_results(directory: Path) -> Results:
    """Read the run in `directory`: its state.sqlite or, without a readable one, manifest.json. Raises ConfigError if it
    is not a run directory, or its state cannot be read and there is no manifest."""
    refuse_half_moved(directory)
    content: Mapping[str, Any] = read_manifest(directory)
    accounts: Mapping[str, RowCounts] = {}
    run_id = ""
    if (directory / STATE_FILE).is_file():
        try:
            with reading(directory) as state:
                content, accounts, run_id = manifest(state, state.status), state.accounts(), state.run_id
        except PipelineError as error:
            if not content:
                raise ConfigError(f"what {directory} holds cannot be told: {error}") from error
    elif not content:
        remedy = near_run(directory) or "; give one like outputs/NAME"
        raise ConfigError(f"{directory} is not a run directory (no {STATE_FILE}){remedy}")
    missing = [s["path"] for s in content.get("shards", []) if not (directory / s["path"]).exists()]
    config, status = read_values(directory / CONFIG, read_yaml), read_values(directory / STATUS)
    run_id = run_id or str(status.get("run_id") or "")
    return Results(directory, content, config, missing, accounts, status, run_id)
