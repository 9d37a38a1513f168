"""A file of each format."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.operators.formats.samples import SUFFIXES, make


@pytest.fixture(params=SUFFIXES)
def path(request, tmp_path: Path) -> Path:
    """ROWS in a file of each format."""
    return make(tmp_path / f"rows.{request.param}")
