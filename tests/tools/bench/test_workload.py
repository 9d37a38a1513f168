"""The rows of a scenario."""

from __future__ import annotations

import json

import pytest

from pipeline.api.errors import SchemaError
from tests.tools.bench.work import request, workload
from tools.bench.workload import PROMPTS, Recipe, facts_of, make


def rows(made):
    return [json.loads(line) for line in (made.folder / PROMPTS).read_text().splitlines()]


def test_lengths_are_those_of_the_answers_up_to_the_cap(tmp_path):
    assert [row["max_tokens"] for row in rows(workload(tmp_path))] == [1, 4, 7, 10, 10, 10]


def test_the_dataset_and_the_rendered_rows_are_the_same_work(tmp_path):
    made = workload(tmp_path)
    table = made.rendered()
    assert table["max_tokens"].to_pylist() == [row["max_tokens"] for row in rows(made)]
    for text, row in zip(table["prompt_text"].to_pylist(), rows(made), strict=True):
        assert text == f"<|im_start|>user\n{row['prompt']}<|im_end|>\n<|im_start|>assistant\n"
    assert [len(ids) for ids in table["prompt_ids"].to_pylist()] == [
        len(t.encode()) for t in table["prompt_text"].to_pylist()
    ]  # the fake's tokens are bytes


def test_copies_have_the_same_text_and_length(tmp_path):
    made = rows(workload(tmp_path, rows=2, copies=3))
    assert made[:3] == [made[0]] * 3
    assert made[3:] == [made[3]] * 3
    assert made[0] != made[3]


def test_data_that_is_too_short_gives_no_text_twice(tmp_path):
    texts = [row["prompt"] for row in rows(workload(tmp_path, rows=20))]
    assert len(set(texts)) == 20


def test_worked_examples_are_a_prefix_of_every_row(tmp_path):
    texts = [row["prompt"] for row in rows(workload(tmp_path, Recipe(few_shot=True), rows=3))]
    example = "Question: How much is 5 + 5? ?????\nAnswer: aaaaaaaaaaaaaaaa\n\n"
    assert all(text.count("\nAnswer: a") == 2 and example in text for text in texts)
    assert all(text.endswith("\nAnswer:") for text in texts)


def test_drawn_lengths_are_in_their_range_and_the_same_again(tmp_path):
    (tmp_path / "again").mkdir()
    one, other = (workload(folder, Recipe(5, 7), rows=40) for folder in (tmp_path, tmp_path / "again"))
    lengths = [row["max_tokens"] for row in rows(one)]
    assert set(lengths) == {5, 6, 7}
    assert lengths == [row["max_tokens"] for row in rows(other)]


def test_lengths_are_drawn_where_there_are_no_answers(tmp_path):
    assert all(1 <= row["max_tokens"] <= 10 for row in rows(workload(tmp_path, answer_column="nothing")))


def test_a_recipe_with_stops_has_one_length_and_a_stop_string(tmp_path):
    made = workload(tmp_path, Recipe(stops=True))
    assert {row["max_tokens"] for row in rows(made)} == {10}
    assert len(made.facts.stop) == 1
    assert made.facts.stop[0].isprintable()


def test_the_facts_add_up(tmp_path):
    made = workload(tmp_path)
    table = made.rendered()
    prompts = [len(ids) for ids in table["prompt_ids"].to_pylist()]
    lengths = table["max_tokens"].to_pylist()
    depths = [p + k for p, n in zip(prompts, lengths, strict=True) for k in range(n)]
    assert made.facts.prompt_tokens == sum(prompts)
    assert made.facts.new_tokens == sum(lengths)
    assert made.facts.longest == max(p + n for p, n in zip(prompts, lengths, strict=True))
    assert made.facts.mean_depth == pytest.approx(sum(depths) / len(depths))


def test_the_mean_depth_of_one_row():
    assert facts_of([10], [3], 100, []).mean_depth == 11  # 10, 11 and 12


def test_other_data_has_another_key(tmp_path):
    before = request(tmp_path)
    key = before.key()
    assert key == request(tmp_path).key()
    assert key != request(tmp_path, rows=5).key()
    assert before.data.path is not None
    (tmp_path / "questions.jsonl").write_text('{"prompt": "x", "answer": "y"}\n')
    assert before.key() != key


def test_a_missing_prompt_column_is_named(tmp_path):
    asked = request(tmp_path)
    asked.data.prompt_column = "question"
    with pytest.raises(SchemaError, match=r"data\.prompt_column="):
        make(asked, tmp_path / "workload")
