"""examples/*.py: each runs as a process in an empty folder, and prints what it should."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pipeline import PROJECT

pytestmark = [pytest.mark.laws, pytest.mark.slow("starts a Python a program")]

PRINTS = {
    "with_pandas": """\
 id          words       completion
  1 hare goose fox fox, goose, hare
  2  oats tea rice  oats, rice, tea
""",
    "with_polars": """\
shape: (2, 3)
┌─────┬────────────────┬──────────────────┐
│ id  ┆ words          ┆ completion       │
│ --- ┆ ---            ┆ ---              │
│ i64 ┆ str            ┆ str              │
╞═════╪════════════════╪══════════════════╡
│ 1   ┆ hare goose fox ┆ fox, goose, hare │
│ 2   ┆ oats tea rice  ┆ oats, rice, tea  │
└─────┴────────────────┴──────────────────┘
""",
    "with_datasets": """\
{'id': 1, 'words': 'hare goose fox', 'completion': 'fox, goose, hare'}
{'id': 2, 'words': 'oats tea rice', 'completion': 'oats, rice, tea'}
""",
}

WITHOUT_REPORT = """
import runpy, sys
from tests.reports import write_none
write_none()
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_every_example_is_here():
    assert {path.stem for path in (PROJECT / "examples").glob("*.py")} == set(PRINTS)


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_prints_its_rows(name, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_REPORT, str(PROJECT / f"examples/{name}.py")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == PRINTS[name]
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]
