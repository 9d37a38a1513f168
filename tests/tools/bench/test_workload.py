"""The rows of a scenario."""

from __future__ import annotations

import pytest

from pipeline.api.errors import SchemaError
from tests.tools.bench.work import of_sizes, workload
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
