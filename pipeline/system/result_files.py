"""Read result files, in every format that sinks write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import polars as pl

SCANS: Mapping[str, Callable[[list[Path]], pl.LazyFrame]] = {
    ".parquet": pl.scan_parquet,
    ".jsonl": partial(pl.scan_ndjson, infer_schema_length=None),
    ".arrow": pl.scan_ipc,
}
"""Reader by file suffix, which .gz or .zst may follow."""


def scan(files: list[Path]) -> pl.LazyFrame | None:
    """Scan `files`, all of one format; None if there are none or the format is unknown."""
    formats = {Path(path.name.removesuffix(".gz").removesuffix(".zst")).suffix for path in files}
    reader = SCANS.get(formats.pop()) if len(formats) == 1 else None
    return None if reader is None else reader(files)
