"""The eliminations of the job evol_instruct, by the template in its file: what an evolution becomes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from operators.map import Map
from pipeline.api.records import Batch
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
