"""The jobs evol_instruct (its eliminations, by the template in its file) and dialogues (three turns, a forced call, its
result, and prompts that are those of the whole conversation)."""

from __future__ import annotations

import json
import operator
from pathlib import Path

import pyarrow as pa
import pytest

from operators.map import Map
from operators.prompts.messages import conversation
from operators.prompts.template import Template
from pipeline.api.records import Batch
from pipeline.config.jobs import JOBS
from tests.recipes.shipped import recipe, run

BEFORE, NEW = "Name a bird.", "Name a bird that cannot fly."
STEPS = recipe("evol_instruct")["steps"]


def instruction_after(new: str = NEW, same: str = "no", reply: str = "The ostrich.") -> str:
    made = Map(templates=STEPS["once_end"]["op"]["templates"])
    row = {"instruction": BEFORE, "new": new, "same": same, "reply": reply, "row": 0}
    data = pa.RecordBatch.from_pylist([row])
    made.plan(data.schema)
    (batch,) = made.process(Batch(data=data, chunk=0))
    assert isinstance(batch, Batch)
    return str(batch.data.column("instruction")[0].as_py())


@pytest.mark.parametrize(
    "reply",
    ["The ostrich.", "42", "I am sorry, " + "it flew " * 39, "Das weiß ich.", "The of it: emu!"],
    ids=["words", "a number", "sorry in 81 words", "another language", "one word among stop words"],
)
def test_an_evolution_that_is_answered_takes_the_place_of_its_instruction(reply):
    assert instruction_after(reply=reply) == NEW


@pytest.mark.parametrize(
    ("rule", "row"),
    [
        ("nothing gained", {"same": "yes"}),
        ("nothing gained", {"new": ""}),
        ("nothing gained", {"new": " \n"}),
        ("a refusal", {"reply": "I am Sorry, I do not know."}),
        ("a refusal", {"reply": "Sorry, " + "it flew " * 39}),
        ("no words", {"reply": ""}),
        ("no words", {"reply": " ... ?! --"}),
        ("no words", {"reply": "The of it"}),
        ("no words", {"reply": "It is, and that is the ... for you!"}),
        ("the prompt copied", {"new": "New instruction: name a bird."}),
        ("the prompt copied", {"new": "Rewrite this instruction so that it goes deeper."}),
    ],
)
def test_an_evolution_that_fails_a_rule_leaves_the_instruction_as_it_was(rule, row):
    assert instruction_after(**row) == BEFORE


def test_both_rounds_eliminate_alike_and_look_for_words_of_their_prompt():
    assert STEPS["once_end"] == STEPS["twice_end"]
    assert "this instruction" in STEPS["once"]["prompt"]
    assert "new instruction" in STEPS["once"]["prompt"]
    assert STEPS["once"]["prompt"] == STEPS["twice"]["prompt"]


def test_empty_evolutions_lose_no_row(tmp_path):
    job = recipe("evol_instruct")
    for name in ("once", "twice"):
        job["steps"][name]["extract"] = "{{ '' if row % 2 else completion }}"
    job["sampling"]["max_tokens"] = 8
    rows, rejects = run(job, tmp_path, rows=6)
    assert (len(rows), rejects) == (6, [])
    assert all(row["instruction"] == row["prompt"] for row in rows if row["row"] % 2)


CALCULATED = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}
ROLES = ["user", "assistant", "tool", "assistant", "user", "assistant", "user", "assistant"]


def test_without_a_call_the_answer_is_the_turn(tmp_path: Path) -> None:
    job = recipe("dialogues")
    job["steps"]["call"]["sampling"] = {"tools": "auto", "max_tokens": 8}
    data, rejects = run(job, tmp_path, 4)
    assert (len(data), rejects) == (4, [])
    for row in data:
        assert [message["role"] for message in json.loads(row["messages"])] == ["user", "assistant"] * 3


def test_a_tool_answers_the_call_of_the_first_of_three_turns(tmp_path: Path) -> None:
    job = recipe("dialogues")
    job["steps"]["third"]["columns"] = ["prompt_text"]
    job["steps"]["dataset"]["op"]["columns"].append("third_prompt_text")
    data, rejects = run(job, tmp_path, 8)
    assert (len(data), rejects) == (8, [])
    hermes = Template((JOBS / "data/hermes.jinja").read_text(encoding="utf-8"), "hermes", strict=False)
    for row in data:
        messages = json.loads(row["messages"])
        assert [message["role"] for message in messages] == ROLES
        assert messages[0]["content"] == row["question"]
        (call,) = messages[1]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        assert (call["id"], call["function"]["name"]) == ("call00000", "calculate")
        assert all(0 <= arguments[key] <= 999 for key in ("a", "b"))
        result = CALCULATED[arguments["operation"]](arguments["a"], arguments["b"])
        assert (messages[2]["tool_call_id"], json.loads(messages[2]["content"])) == ("call00000", {"result": result})
        before = [{"content": "", **message} for message in conversation(messages[:-1], "messages")]
        values = {"messages": before, "tools": job["data"]["tools"], "add_generation_prompt": True}
        assert row["third_prompt_text"] == hermes.render(values)
