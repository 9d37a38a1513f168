"""docs/python.md: its blocks run, one after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from pipeline import PROJECT

pytestmark = pytest.mark.slow("runs what the page shows")


def test_the_blocks_of_the_page_run_in_their_order(tmp_path):
    page = (PROJECT / "docs/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len(blocks) == 5
    checks = [
        "assert result.counts['data_rows'] == 4",
        "assert result.rows().collect()['prompt'].to_list()[1] == 'What is 2 + 3?'",
        "assert table.num_rows == dataset.num_rows == len(answered) == 1",
        "assert result.rows().collect()['verdict'].item() in ('yes', 'no')",
        "assert (row := result.rows().collect().row(0, named=True))['loud'] == row['reply'].upper()",
    ]
    parts = ["from tests.reports import write_none; write_none()"]
    parts += [part for pair in zip(blocks, checks, strict=True) for part in pair]
    env = os.environ | {"PYTHONPATH": str(PROJECT)}
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(parts)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "outputs/mine/input.parquet").is_file()
    assert (tmp_path / "pairs.yaml").is_file()
    assert "the results go to" in ran.stderr
