"""The rows of a scenario, the rungs and calls in blocks that do the same work, and workers that sleep."""

from __future__ import annotations

import polars as pl
import pytest

from operators.engine.backend.fake import MASK_ID
from operators.settings import ModelSettings
from pipeline.api.errors import ConfigError, SchemaError
from tests.tools.bench.work import of_sizes, spec, with_mask, workload
from tools.bench import rungs, scale
from tools.bench.child import run_child
from tools.bench.contenders import Function
from tools.bench.figures import Figures
from tools.bench.scenarios import SCENARIOS
from tools.bench.workload import Recipe


def column(made, name):
    return made.rows[name].to_pylist()


def test_lengths_are_those_of_the_answers_up_to_the_cap(tmp_path):
    assert column(workload(tmp_path), "max_tokens") == [1, 4, 7, 10, 10, 10]


def test_prompts_are_the_same_in_every_form(tmp_path):
    for row in workload(tmp_path).rows.to_pylist():
        assert row["prompt_text"] == f"<|im_start|>user\n{row['prompt']}<|im_end|>\n<|im_start|>assistant\n"
        assert len(row["prompt_ids"]) == len(row["prompt_text"].encode())  # the fake's tokens are bytes


def test_copies_are_the_same_row(tmp_path):
    made = workload(tmp_path, rows=2, copies=3).rows.to_pylist()
    assert made == [made[0]] * 3 + [made[3]] * 3
    assert made[0] != made[3]


def test_data_that_is_too_short_gives_no_text_twice(tmp_path):
    assert len(set(column(workload(tmp_path, rows=20), "prompt"))) == 20


def test_worked_examples_are_a_prefix_of_every_row(tmp_path):
    texts = column(workload(tmp_path, Recipe(few_shot=True), rows=3), "prompt")
    example = "Question: How much is 5 + 5? ?????\nAnswer: aaaaaaaaaaaaaaaa\n\n"
    assert all(text.count("\nAnswer: a") == 2 and example in text for text in texts)
    assert all(text.endswith("\nAnswer:") for text in texts)


def test_drawn_lengths_are_in_their_range_and_the_same_again(tmp_path):
    one, other = (column(workload(tmp_path, Recipe(5, 7), rows=40), "max_tokens") for _ in range(2))
    assert set(one) == {5, 6, 7}
    assert one == other


def test_the_last_two_rows_are_the_tail(tmp_path):
    found = column(workload(tmp_path, Recipe(5, 7, tail=9), rows=40), "max_tokens")
    assert found[-2:] == [9, 9]
    assert set(found[:-2]) == {5, 6, 7}


def test_lengths_are_drawn_where_there_are_no_answers(tmp_path):
    assert all(1 <= n <= 10 for n in column(workload(tmp_path, answer_column="nothing"), "max_tokens"))


def test_a_recipe_with_stops_has_one_length_and_a_stop_string(tmp_path):
    made = workload(tmp_path, Recipe(stops=True))
    assert set(column(made, "max_tokens")) == {10}
    assert len(made.stop) == 1
    assert made.stop[0].isprintable()


def test_the_facts_add_up(tmp_path):
    made = workload(tmp_path)
    sizes = [(len(row["prompt_ids"]), row["max_tokens"]) for row in made.rows.to_pylist()]
    depths = [p + k for p, n in sizes for k in range(n)]
    assert (made.prompt_tokens, made.new_tokens) == tuple(map(sum, zip(*sizes, strict=True)))
    assert made.longest == max(map(sum, sizes))
    assert made.mean_depth == pytest.approx(sum(depths) / len(depths))
    assert of_sizes([10], [3]).mean_depth == 11  # 10, 11 and 12


def test_a_missing_prompt_column_is_named(tmp_path):
    with pytest.raises(SchemaError, match=r"data\.prompt_column="):
        workload(tmp_path, column="question")


NAMES = sorted(
    {
        each.function.removeprefix("tools.bench.rungs:")
        for plan in SCENARIOS.values()
        for each in plan.contenders
        if isinstance(each, Function) and each.function.startswith("tools.bench.rungs:")
    }
)


@pytest.mark.parametrize("name", NAMES)
def test_each_makes_the_tokens_of_the_workload(tmp_path, name):
    case = spec(tmp_path, slots=4, rows=11)
    found, facts = getattr(rungs, name)(case), case.workload
    assert (found.prompt_tokens, found.new_tokens) == (facts.prompt_tokens, facts.new_tokens)
    assert found.work_s > 0


def test_the_steps_of_the_engine_do_not_depend_on_the_sampler(tmp_path):
    case = spec(tmp_path, slots=4, rows=11)
    assert rungs.engine(case).steps == rungs.sampling(case).steps


def test_blocks_have_the_mask_that_is_given_for_a_model_that_names_none(tmp_path):
    case = with_mask(spec(tmp_path), MASK_ID)
    assert rungs.blocks_reused(case).new_tokens == case.workload.new_tokens


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
