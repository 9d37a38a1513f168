"""Several samples of a step, and which of them stay (`n`, `pick`)."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.sets import often
from tests.test_steps import run

PICKS = {
    "best": '{prompt: "{{ prompt }}", n: 4, pick: best, sampling: {temperature: 1.0, max_tokens: 24}}',
    "majority": '{prompt: "{{ prompt }}", n: 4, pick: majority, sampling: {temperature: 1.0, max_tokens: 24}}',
    "all": '{prompt: "{{ prompt }}", n: 4, sampling: {temperature: 1.0, logprobs: 0, max_tokens: 24}}',
}


@pytest.fixture(scope="module")
def every(tmp_path_factory) -> list[dict[str, Any]]:
    """All of four samples of each row."""
    out = run(tmp_path_factory.mktemp("samples"), f"steps: {{x: {PICKS['all']}}}", "out")
    rows: list[dict[str, Any]] = pq.read_table(out / "data").to_pylist()
    return rows


@pytest.mark.parametrize("pick", often(["best", "majority"], "majority"))
def test_one_of_several_samples_stays_without_a_reject_for_each_other(pick, every, tmp_path):
    out = run(tmp_path, f"steps: {{x: {PICKS[pick]}}}", "out")
    assert not (out / "rejects").exists() or not pq.read_table(out / "rejects").num_rows
    rows = pq.read_table(out / "data").to_pylist()
    assert [row["row"] for row in rows] == list(range(10))
    for row in rows:
        samples = [other for other in every if other["row"] == row["row"]]
        assert len(samples) == 4
        texts = [other["x"] for other in samples]
        if pick == "majority":
            most = max(map(texts.count, texts))
            assert row["x"] == next(text for text in texts if texts.count(text) == most)
            assert (row["x_votes"], row["x_samples"]) == (most, 4)
        else:
            means = [sum(other["x_logprobs"]) / len(other["x_logprobs"]) for other in samples]
            assert row["x"] == texts[means.index(max(means))]
            assert "x_logprobs" not in row  # it served the choice, and nobody asked for it
