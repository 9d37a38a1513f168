"""No run of a test writes a report, which takes longer than most of these runs; what tests reports asks for them."""

from __future__ import annotations

import os

import pytest

from pipeline.report.written import VARIABLE


def pytest_configure(config: pytest.Config) -> None:
    """Here, not in a fixture: processes that tests start inherit it."""
    os.environ[VARIABLE] = "off"
