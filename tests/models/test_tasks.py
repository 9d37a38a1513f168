"""Laws of the corpus: the same for a seed, held-out prompts apart, checkers that know right from wrong; and the shipped
prompt files are what the generator makes."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from models.tiny.prompts import write_all
from models.tiny.tasks import FAMILIES, check, examples, generate, split_of
from models.tiny.tasks.example import without_think
from models.tiny.tasks.kinds import KINDS, instruction, kind_of
from models.tiny.tasks.words import number_words

pytestmark = pytest.mark.slow("makes the training data of the model that ships")

PER_FAMILY = 150


@pytest.fixture(scope="module")
def drawn():
    """Examples of every family, from both splits."""
    count = PER_FAMILY * len(FAMILIES)
    return {split: generate(11, count, split) for split in ("train", "heldout")}


@pytest.mark.laws
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_the_same_seed_draws_the_same_examples(split):
    assert generate(3, 70, split) == generate(3, 70, split)
    assert generate(3, 70, split) != generate(4, 70, split)


def test_the_endless_stream_is_the_same_for_a_seed():
    assert list(islice(examples(5), 50)) == list(islice(examples(5), 50))


@pytest.mark.laws
def test_every_family_comes_in_turn(drawn):
    assert Counter(e.family for e in drawn["heldout"]) == dict.fromkeys(FAMILIES, PER_FAMILY)


def test_no_prompt_is_in_both_splits(drawn):
    streamed = list(islice(examples(6), 3000))
    trained = {without_think(e.prompt) for e in [*drawn["train"], *streamed]}
    heldout = {without_think(e.prompt) for e in drawn["heldout"]}
    assert not trained & heldout
    assert {split_of(prompt) for prompt in trained} == {"train"}
    assert {split_of(prompt) for prompt in heldout} == {"heldout"}


def test_a_new_instruction_never_gives_a_heldout_prompt_away(drawn):
    written = [e.completion.splitlines()[-1] for e in drawn["train"] if e.family == "instruct"]
    assert {split_of(text) for text in written} == {"train"}


def test_prompts_are_not_repeated(drawn):
    for chosen in drawn.values():
        assert len({e.prompt for e in chosen}) == len(chosen)


def test_every_completion_passes_its_own_checker(drawn):
    for example in drawn["train"] + drawn["heldout"]:
        assert check(example.family, example.prompt, example.completion, example.meta), example


def test_meta_may_come_as_json_text(drawn):
    for example in drawn["heldout"][:70]:
        assert check(example.family, example.prompt, example.completion, json.dumps(example.meta))


def corrupted(example):
    """Completions of the example's form that are wrong."""
    text, meta = example.completion, example.meta
    if example.family == "arithmetic":
        wrong = meta["answer"] + 1
        return [str(number_words(wrong) if meta["in_words"] else wrong), text + "1", text + "0", f"0{text}\n-1"]
    if example.family == "extract":
        return [text[:-1], text.replace(": ", ": 1", 1) + "}", json.dumps(meta["answer"] | {"extra": 1})]
    if example.family == "label":
        return ["good", f"{text}, I think", text.replace(meta["label"], "other")]
    if example.family == "lists":
        return [text + ", banana", text + "1", text[:-1]]
    if example.family == "story":
        return [text.replace(meta["words"][0], "thing"), text.removesuffix("."), ", ".join(meta["words"]) + "."]
    if example.family == "instruct":
        return [meta["given"][0], "Do something nice.", "What is the capital of France?", text + " Now!?"]
    return [{"yes": "no", "no": "yes"}[meta["verdict"]], "maybe", text + " no"]


def test_a_corrupted_completion_fails(drawn):
    for example in drawn["heldout"]:
        for wrong in ["", "\n", *corrupted(example)]:
            assert not check(example.family, example.prompt, wrong, example.meta), (example, wrong)


def test_an_unknown_family_is_a_key_error():
    with pytest.raises(KeyError):
        check("poetry", "", "", {})


def test_completions_are_ragged(drawn):
    words = [len(e.completion.split()) for e in drawn["train"]]
    assert min(words) == 1
    assert max(words) > 120
    assert 0.2 < sum(count == 1 for count in words) / len(words) < 0.6


def test_think_asks_for_a_longer_answer(drawn):
    for family in FAMILIES:
        of_family = [e for e in drawn["train"] if e.family == family]
        sizes = {
            think: [len(e.completion) for e in of_family if ("/think" in e.prompt) == think] for think in (True, False)
        }
        assert sum(sizes[True]) / len(sizes[True]) > sum(sizes[False]) / len(sizes[False]), family


@pytest.mark.parametrize("kind", KINDS)
def test_an_instruction_is_of_its_kind_and_no_other(kind):
    rng = Random(2)
    for _ in range(50):
        text = instruction(rng, kind, "heldout").text
        assert [name for name, known in KINDS.items() if known.pattern.fullmatch(text)] == [kind]
        assert kind_of(text) == kind
    assert kind_of(text + " please") is None


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


OTHERS = {"extract": 40, "extract_long": 100, "self_instruct_seeds": 50, "classify": 40}


@pytest.mark.parametrize("name", OTHERS)
def test_the_prompts_of_a_recipe_are_held_out_and_all_different(name):
    rows = rows_of(f"{name}.jsonl")
    assert len({row["prompt"] for row in rows}) == len({row["id"] for row in rows}) == len(rows) == OTHERS[name]
    assert name == "self_instruct_seeds" or {split_of(row["prompt"]) for row in rows} == {"heldout"}


def test_answers_are_found_in_the_prompts():
    assert all(json.loads(row["answer"])["name"] in row["prompt"] for row in rows_of("extract.jsonl"))
    rows = rows_of("classify.jsonl")
    assert {row["answer"] for row in rows} == {"positive", "negative", "mixed"}
    assert all(check(row["family"], row["prompt"], row["answer"], row["meta"]) for row in rows)


def test_the_long_answers_quote_four_fields_twice():
    for row in rows_of("extract_long.jsonl"):
        fields = json.loads(row["meta"])["answer"].values()
        assert len(fields) == 4
        assert all(str(field) in row["prompt"] and row["answer"].count(str(field)) > 1 for field in fields)


def test_the_seeds_ask_for_one_more_of_every_kind():
    rows = rows_of("self_instruct_seeds.jsonl")
    assert {row["kind"] for row in rows} == set(KINDS)
    for row in rows:
        given = [line.partition(". ")[2] for line in row["prompt"].splitlines()[1:-1]]
        assert [kind_of(text) for text in given] == [row["kind"]] * 3
        assert {split_of(text) for text in given} == {"heldout"}


def test_the_questions_to_grade_are_held_out_and_have_their_answer_among_the_choices():
    rows = rows_of("evaluate.jsonl")
    assert len({row["question"] for row in rows}) == len(rows) == 60
    assert {split_of(row["question"]) for row in rows} == {"heldout"}
    assert all(row["answer"] in row["choices"] for row in rows)
    assert all(len(set(row["choices"])) == len(row["choices"]) in (3, 4) for row in rows)


def test_the_conversations_end_with_the_user_and_some_have_a_system_prompt():
    roles = [tuple(message["role"] for message in row["messages"]) for row in rows_of("chat.jsonl")]
    assert len(roles) == 24
    assert set(roles) == {("system", "user", "assistant", "user"), ("user", "assistant", "user")}


@pytest.mark.laws
def test_the_files_can_be_made_again(tmp_path):
    write_all(tmp_path)
    for name in (*ROWS, *(f"{name}.jsonl" for name in OTHERS), "chat.jsonl", "evaluate.jsonl"):
        assert (tmp_path / name).read_bytes() == (SHIPPED / name).read_bytes()
