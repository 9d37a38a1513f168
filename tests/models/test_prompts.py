"""The shipped prompt files are what the generator makes, and all held out."""

import json
from pathlib import Path

import pytest

from models.tiny.prompts import write_all
from models.tiny.tasks import FAMILIES, check, split_of
from models.tiny.tasks.kinds import KINDS, kind_of

SHIPPED = Path(__file__).parents[2] / "jobs" / "data"
ROWS = {"quickstart.jsonl": 200, "evaluate_tiny.jsonl": 500}


def rows_of(name):
    return [json.loads(line) for line in (SHIPPED / name).read_text().splitlines()]


@pytest.mark.parametrize("name", ROWS)
def test_the_file_holds_heldout_prompts_of_all_families(name):
    rows = rows_of(name)
    assert len(rows) == ROWS[name]
    assert {row["family"] for row in rows} == set(FAMILIES)
    assert {split_of(row["prompt"]) for row in rows} == {"heldout"}
    assert len({row["id"] for row in rows}) == len(rows)
    assert all(check(row["family"], row["prompt"], row["answer"], row["meta"]) for row in rows)


def test_the_files_share_no_prompt():
    first, second = ({row["prompt"] for row in rows_of(name)} for name in ROWS)
    assert not first & second


def test_the_records_to_extract_from_are_held_out_and_all_different():
    rows = rows_of("extract.jsonl")
    assert {split_of(row["prompt"]) for row in rows} == {"heldout"}
    assert len({row["prompt"] for row in rows}) == len({row["id"] for row in rows}) == len(rows) == 40
    assert all(json.loads(row["answer"])["name"] in row["prompt"] for row in rows)


def test_the_long_answers_quote_four_fields_twice():
    rows = rows_of("extract_long.jsonl")
    assert {split_of(row["prompt"]) for row in rows} == {"heldout"}
    assert len({row["prompt"] for row in rows}) == len({row["id"] for row in rows}) == len(rows) == 100
    for row in rows:
        fields = json.loads(row["meta"])["answer"].values()
        assert len(fields) == 4
        assert all(str(field) in row["prompt"] and row["answer"].count(str(field)) > 1 for field in fields)


def test_the_seeds_ask_for_one_more_of_every_kind():
    rows = rows_of("self_instruct_seeds.jsonl")
    assert len({row["prompt"] for row in rows}) == len({row["id"] for row in rows}) == len(rows) == 50
    assert {row["kind"] for row in rows} == set(KINDS)
    for row in rows:
        given = [line.partition(". ")[2] for line in row["prompt"].splitlines()[1:-1]]
        assert [kind_of(text) for text in given] == [row["kind"]] * 3
        assert {split_of(text) for text in given} == {"heldout"}


def test_the_reviews_to_classify_are_held_out_and_have_each_sentiment():
    rows = rows_of("classify.jsonl")
    assert {split_of(row["prompt"]) for row in rows} == {"heldout"}
    assert len({row["prompt"] for row in rows}) == len({row["id"] for row in rows}) == len(rows) == 40
    assert {row["answer"] for row in rows} == {"positive", "negative", "mixed"}
    assert all(check(row["family"], row["prompt"], row["answer"], row["meta"]) for row in rows)


def test_the_conversations_end_with_the_user_and_some_have_a_system_prompt():
    roles = [tuple(message["role"] for message in row["messages"]) for row in rows_of("chat.jsonl")]
    assert len(roles) == 24
    assert set(roles) == {("system", "user", "assistant", "user"), ("user", "assistant", "user")}


@pytest.mark.laws
def test_the_files_can_be_made_again(tmp_path):
    write_all(tmp_path)
    for name in (
        *ROWS,
        "extract.jsonl",
        "extract_long.jsonl",
        "classify.jsonl",
        "chat.jsonl",
        "self_instruct_seeds.jsonl",
    ):
        assert (tmp_path / name).read_bytes() == (SHIPPED / name).read_bytes()
