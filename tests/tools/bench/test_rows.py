"""The job of the scenario `rows`."""

from __future__ import annotations

import pytest

from tests.tools.bench.work import spec
from tools.bench.child import run_child
from tools.bench.rows import Rows


@pytest.mark.laws  # starts a run for each
@pytest.mark.parametrize("read", ["jsonl", "csv", "parquet"])
def test_the_job_runs_and_its_rows_are_counted(tmp_path, read):
    contender = Rows("rows", ("output=jsonl",), read=read, copies_each=50)
    made = spec(tmp_path)
    run_child(contender.command(made), 120)
    found = contender.figures(made, "")
    assert (found.new_tokens, found.prompt_tokens) == (300, 0)
    assert found.row()["tokens_per_s"] > 0
    assert list((tmp_path / "out/rejects").glob("*.parquet"))
