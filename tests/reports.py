"""Runs of tests write no report, which takes longer than most of these runs: what tests reports asks for them."""

from __future__ import annotations

import pytest

from pipeline.results.report import report_of_attempt

_USED = "pipeline.runs.ending.report_of_attempt"


def write_none() -> None:
    """Have attempts write no report, from now on in this process. Other processes are told by `report=false`."""
    pytest.MonkeyPatch().setattr(_USED, lambda directory, *, wanted: [])


def write_again(patch: pytest.MonkeyPatch) -> None:
    """Undo `write_none` for as long as `patch` lasts."""
    patch.setattr(_USED, report_of_attempt)
