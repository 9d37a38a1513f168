"""The rows of result files, in each format that sinks write."""

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
"""By the ending of the files' names, the function that reads them; one of COMPRESSED may stand behind it."""
COMPRESSED = ("", ".gz", ".zst")


def scan(files: list[Path]) -> pl.LazyFrame | None:
    """The rows of `files`, which are of one format; None where there are no files or the format is not known."""
    formats = {_format(path.name) for path in files}
    known = formats.pop() if len(formats) == 1 else None
    return None if known is None else SCANS[known](files)


def _format(name: str) -> str | None:
    return next((end for end in SCANS if name.endswith(tuple(end + packed for packed in COMPRESSED))), None)
