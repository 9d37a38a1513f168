"""The formats of files. To add one, write a file like those beside this one and add its Format here, and the keys of
`output` that it has of its own."""

from __future__ import annotations

from dataclasses import dataclass

from operators.formats.arrow import ARROW
from operators.formats.csv import CSV
from operators.formats.images import IMAGES
from operators.formats.json import JSON
from operators.formats.jsonl import JSONL
from operators.formats.lines import LINES
from operators.formats.parquet import PARQUET
from operators.formats.result_csv import CsvKeys, DefuseKey
from operators.formats.xlsx import XLSX

FORMATS = {form.name: form for form in (PARQUET, JSONL, IMAGES, JSON, CSV, ARROW, XLSX, LINES)}
"""By `data.format`. Of those that are `alone`, each is read rather than those before it."""
ENDINGS = {ending: form.name for form in FORMATS.values() for ending in form.endings}
"""The format of a file, by the ending of its name."""
WRITTEN = {name: form for name, form in FORMATS.items() if form.compressions}
"""Those of results, by `output.format`."""


@dataclass(kw_only=True)
class FormatKeys(CsvKeys, DefuseKey):
    """Keys of `output` that only some formats have."""
