"""The formats of files. To add one, write a file like those beside this one and add its Format here.

If results may have it, `result_files.SCANS` says how polars reads it back, and conf/output/ has an option of its name.
"""

from __future__ import annotations

from operators.formats.arrow import ARROW
from operators.formats.csv import CSV
from operators.formats.json import JSON
from operators.formats.jsonl import JSONL
from operators.formats.lines import LINES
from operators.formats.parquet import PARQUET
from operators.formats.xlsx import XLSX

FORMATS = {form.name: form for form in (PARQUET, JSONL, JSON, CSV, ARROW, XLSX, LINES)}
"""By `data.format`."""
ENDINGS = {ending: form.name for form in FORMATS.values() for ending in form.endings}
"""The format of a file, by the ending of its name."""
WRITTEN = {name: form for name, form in FORMATS.items() if form.compressions}
"""Those of results, by `output.format`."""
