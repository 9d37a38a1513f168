"""What the report of a run takes, for an estimate."""

from __future__ import annotations

import importlib.util

from pipeline.api.forecast import NOTHING, Range
from pipeline.results.report.write import is_written

DRAWING_BYTES = Range(30e6, 45e6, 75e6)
"""Of memory: the drawing library and its figures (41 to 46 MB were seen)."""
FILE_BYTES = Range(60e3, 120e3, 300e3)
"""Of report.html, drawings and sample rows (100 to 120 kB were seen)."""


def report_costs(*, wanted: bool) -> tuple[Range, Range]:
    """Bytes of memory and of disk.

    Args:
        wanted: the setting `report`.
    """
    if not is_written(wanted):
        return NOTHING, NOTHING
    return DRAWING_BYTES if importlib.util.find_spec("matplotlib") else NOTHING, FILE_BYTES
