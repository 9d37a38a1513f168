"""Rows of a run as Arrow batches, chunk by chunk, also while the run is at work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa

from pipeline.api.errors import ConfigError, PipelineError
from pipeline.api.records import RejectKind
from pipeline.monitor.wording import one_line
from pipeline.results.reader import Results, read_results
from pipeline.run_dir.names import DATA, REJECTS
from pipeline.run_dir.state import RunStatus
from pipeline.settings import AGAIN

POLL_S = 0.2
LONGEST_REASON = 300
"""Characters of the reason of a reject in a message."""
ENDED_WELL = (RunStatus.DONE, RunStatus.BUDGET)


def committed_batches(directory: Path, folder: str, ended: Callable[[], bool] | None) -> Iterator[pa.RecordBatch]:
    """Yield the committed rows of a folder of a run in order.

    Args:
        ended: whether the run is over; until then chunks that it commits are yielded too. None: only what is there.

    Raises:
        ConfigError: there is no such folder, or its rows cannot be told before the run has ended.
        PipelineError: the run is over before it was done.
    """
    begun, is_last = 0, False
    while not is_last:
        is_last = ended is None or ended()  # asked first: what is committed after it is read below
        results = read_results(directory)
        shards = results.shards(folder)
        if ended is not None:
            _check_followed(results, shards)
        if len(shards) > begun:
            of_all = _of_all(results, folder)
            for path, rows in shards[begun:]:
                if rows:
                    yield from of_all(results.scanned(folder, [path]), path)
            begun = len(shards)
        elif not is_last:
            time.sleep(POLL_S)
    if not begun and folder != DATA and folder not in results.folders:
        raise no_rows(results, folder)
    status = results.manifest.get("status")
    if ended is not None and status not in ENDED_WELL:
        rows = results.counts.get("data_rows", 0)
        raise PipelineError(f"{directory}: the run is {status}, with {rows:,} rows; the same call or command goes on")


def no_rows(results: Results, folder: str) -> ConfigError:
    """Return the error of who asks for rows where none are."""
    folders = ", ".join(results.folders) or "none: it has no rows"
    why = "" if results.folders else _first_reject(results)
    return ConfigError(f"{results.directory} has no rows in {folder}; folders with rows: {folders}{why}")


def _first_reject(results: Results) -> str:
    """Return how many rejects a run has, the first of them, errors before rows that are filtered, and where all are."""
    rejects = results.rejects()
    if rejects is None:
        return ""
    errors, filtered = (results.counts.get(f"{kind}_rejects", 0) for kind in ("error", "filtered"))
    number = f"{errors:,} of its rows are rejects" if errors else f"{filtered:,} of its rows are filtered"
    is_error = pl.col("kind") == RejectKind.ERROR.value
    first = rejects.filter(is_error if errors else ~is_error).head(1).collect().rows(named=True)
    said = [f", the first (row {r['row']}) at {r['node']}: {one_line(r['reason'], LONGEST_REASON)}" for r in first]
    return f"; {number}{''.join(said)}; {results.directory / REJECTS} has all (rejects() of a result)"


def _check_followed(results: Results, shards: list[tuple[Path, int]]) -> None:
    where = f"{results.directory} is followed while the run is at work, and"
    if results.config.get("append_changed") == AGAIN:
        raise ConfigError(f"{where} append_changed=again may replace rows that were given; read it when it has ended")
    if any(".jsonl" in path.suffixes for path, _ in shards):
        raise ConfigError(f"{where} JSON lines have no types until all are there; take output=parquet or output=arrow")


def _of_all(results: Results, folder: str) -> Callable[[pl.LazyFrame | None, Path], Iterator[pa.RecordBatch]]:
    """Return a function that reads the rows of one file as they are among those of all files."""
    every = results.rows(folder)
    schema = None if every is None else every.collect_schema()
    replaced = None
    if results.config.get("append_changed") == AGAIN and (files := results.shards(folder)):
        all_rows = results.scanned(folder, [path for path, rows in files if rows])
        assert all_rows is not None
        replaced = all_rows.select(pl.col("supersedes").alias("row")).drop_nulls().collect().lazy()

    def read(rows: pl.LazyFrame | None, path: Path) -> Iterator[pa.RecordBatch]:
        if rows is None or schema is None:
            raise ConfigError(f"{path} has a format that is not read here")
        if replaced is not None:
            rows = rows.join(replaced, on="row", how="anti", maintain_order="left")
        here = rows.collect_schema()
        if here != schema:  # JSON lines
            rows = rows.select(
                pl.col(name).cast(kind) if name in here else pl.lit(None, kind).alias(name)
                for name, kind in schema.items()
            )
        yield from rows.collect().to_arrow().to_batches()

    return read
