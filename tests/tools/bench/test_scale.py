"""Workers that sleep, and what their driver costs."""

from __future__ import annotations

import polars as pl
import pytest

from operators.settings import ModelSettings
from pipeline.api.errors import ConfigError
from tests.tools.bench.work import spec
from tools.bench import scale
from tools.bench.child import run_child
from tools.bench.figures import Figures

FOUND = Figures(work_s=1, prompt_tokens=1, new_tokens=1)
DRIVER = [(0.0, 1.0), (1.5, 3.0), (2.5, 3.5), (6.0, 4.0)]


def stages(*rows: tuple[str | None, float, float, int, float, float]) -> pl.DataFrame:
    names = ["worker", "t_s", "interval_s", "rows_in", "busy_s", "wall_s"]
    return pl.DataFrame([("generate", *row) for row in rows], schema=["node", *names], orient="row")


TWO = stages(
    (None, 1.0, 1.0, 60, 0, 0),
    (None, 3.0, 2.0, 30, 0, 0),
    (None, 5.0, 2.0, 10, 0, 0),
    ("1", 1.0, 1.0, 0, 0.1, 1.0),
    ("2", 2.0, 2.0, 0, 0.0, 0.5),
    ("1", 2.1, 1.1, 0, 0.0, 1.1),
    ("1", 3.0, 0.9, 0, 0.9, 1.0),
    ("2", 3.0, 1.0, 0, 0.9, 1.0),
    ("1", 4.0, 1.0, 0, 1.0, 1.0),
    ("2", 4.0, 1.0, 0, 0.8, 1.0),
    ("1", 5.0, 1.0, 0, 0.01, 1.0),
    ("2", 5.0, 1.0, 0, 0.99, 1.0),
)
"""Worker 2 opens at 2.0, in an interval of worker 1; that one is done at 4.0, with some work of its end after that."""


def test_figures_begin_when_the_last_worker_has_opened_and_a_worker_that_is_done_ends_the_steady_state():
    found = scale.of_workers(FOUND, TWO, DRIVER, pieces=10)
    assert found.efficiency == pytest.approx(3.6 / 4)
    assert found.whole_efficiency == pytest.approx(4.6 / 6)
    assert found.tail_idle == pytest.approx(1.0 / 6)
    assert found.driver_row_us == pytest.approx(1e6 * (4.0 - 3.0) / 40)
    assert found.driver_piece_ms == pytest.approx(1e3 * (4.0 - 3.0) / 4)


def test_workers_that_are_done_before_the_last_has_opened_have_no_steady_state():
    early = TWO.filter((pl.col("worker").fill_null("") != "2") | (pl.col("t_s") == 5))
    with pytest.raises(ValueError, match="give them more rows"):
        scale.of_workers(FOUND, early, DRIVER, pieces=10)


@pytest.mark.laws  # starts a worker, in 30 s of CPU
def test_the_job_of_workers_runs_and_its_driver_is_weighed(tmp_path):
    contender = scale.Workers("one", ("cluster=processes", "metrics_interval_s=0.1"), workers=1, step_s=0.02)
    made = spec(tmp_path, slots=2, rows=40)
    run_child(contender.command(made), 120)
    found = contender.figures(made, "")
    assert found.new_tokens >= 40
    for name in ("efficiency", "whole_efficiency", "driver_row_us", "driver_piece_ms", "peak_rss_mb"):
        assert getattr(found, name) > 0, name


def test_the_sleeping_model_refuses_what_it_does_not_know():
    with pytest.raises(ConfigError, match="step_s"):
        scale.inspect(ModelSettings(options={"step": 1}))


def test_a_job_that_fails_says_so(tmp_path, capsys):
    assert scale.main([str(tmp_path), "sh", "-c", "echo it broke >&2; exit 3"]) == 3
    assert "it broke" in capsys.readouterr().err
