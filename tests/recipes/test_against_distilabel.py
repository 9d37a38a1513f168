"""The same work in distilabel 1.5.3: the prompts that its tasks send, and the rows and pairs that come out, given the
same completions. A stub replays completions by prompt: in the tests of the jobs ultrafeedback and evol_instruct those
of our own run.

Skipped without distilabel, which is not among the locked dependencies. It has an environment of its own, of the same
version of Python, that takes everything else from the project's:

    python -m venv extra
    extra/bin/pip install distilabel==1.5.3 requests # which it imports without asking for it
    export PYTHONPATH=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    extra/bin/python -m pytest -W default tests/recipes/test_against_distilabel.py # its dependencies warn
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.recipes.shipped import recipe, run, show_prompts

REASON = "needs distilabel 1.5.3 in an extra environment: the docstring of this module has the commands"
llms = pytest.importorskip("distilabel.models.llms", reason=REASON)
tasks = pytest.importorskip("distilabel.steps.tasks", reason=REASON)
steps = pytest.importorskip("distilabel.steps", reason=REASON)

LLM: Any = llms.LLM
Messages = list[dict[str, str]]
Row = dict[str, Any]
MUTATIONS: dict[str, str] = tasks.EvolInstruct.model_fields["mutation_templates"].default


def key_of(messages: Messages) -> str:
    """Return `messages` as JSON, the key of their completion."""
    return json.dumps([{"role": m["role"], "content": m["content"]} for m in messages], ensure_ascii=False)


class Replay(LLM):
    """LLM of distilabel that answers from `completions`, by messages as JSON, and appends the messages to `sent`."""

    completions: dict[str, str]
    structured_output: Any = "as replayed"
    sent: list[Any] = []  # noqa: RUF012 (pydantic copies it for each instance)

    @property
    def model_name(self) -> str:
        return "replay"

    def generate(self, inputs: list[Any], num_generations: int = 1, **kwargs: Any) -> list[Any]:
        self.sent.extend(inputs)
        unknown = [key_of(messages) for messages in inputs if key_of(messages) not in self.completions]
        assert not unknown, f"distilabel sent what nothing answers: {unknown[0]}"
        none = {"input_tokens": [0] * num_generations, "output_tokens": [0] * num_generations}
        return [
            {"generations": [self.completions[key_of(messages)]] * num_generations, "statistics": none}
            for messages in inputs
        ]


def run_task(name: str, rows: Sequence[Row], completions: Mapping[str, str], **settings: Any) -> tuple[Any, list[Row]]:
    """Run a task of distilabel over `rows`: return the messages that it sent, in order, and the rows that come out."""
    llm = Replay(completions=dict(completions))
    task = getattr(tasks, name)(llm=llm, **settings)
    task.load()
    (found,) = task.process(copy.deepcopy(list(rows)))
    return llm.sent, [{k: v for k, v in row.items() if k != "distilabel_metadata"} for row in found]


def ultrafeedback(rows: Sequence[Row], completions: Mapping[str, str], **settings: Any) -> Any:
    """Run UltraFeedback over rows of `instruction` and `generations`; see run_task. `use_default_structured_output`:
    completions are JSON objects with `ratings`, else texts of the form that the prompt asks for."""
    return run_task("UltraFeedback", rows, completions, **settings)


def judge_prompt(row: Row, **settings: Any) -> Messages:
    """Return the messages that UltraFeedback sends for `row`, as it makes them itself."""
    task = tasks.UltraFeedback(llm=Replay(completions={}), **settings)
    task.load()
    messages: Messages = task.format_input(row)
    return messages


def evol_instruct(
    rows: Sequence[Row],
    completions: Mapping[str, str],
    rounds: int = 1,
    seed: int = 0,
    templates: Mapping[str, str] | None = None,
    **settings: Any,
) -> Any:
    """Run EvolInstruct over rows of `instruction`; see run_task. The rows have the instruction of each round, the first
    one included, as `evolved_instructions`. `templates`: by name, other mutations, with `<PROMPT>` for the instruction.
    `settings`: others of the task.

    Its own argument `seed` has no effect in 1.5.3: it draws from NumPy's global generator, which is seeded here.
    """
    np.random.seed(seed)
    settings = {"store_evolutions": True, "include_original_instruction": True, **settings, "num_evolutions": rounds}
    return run_task("EvolInstruct", rows, completions, **settings, mutation_templates=dict(templates or MUTATIONS))


def dpo_pairs(rows: Sequence[Row]) -> list[Row]:
    """Return the pairs that distilabel makes of rows of `instruction`, `generations` and `ratings`."""
    (found,) = steps.FormatTextGenerationDPO().process(copy.deepcopy(list(rows)))
    return [{k: row[k] for k in ("prompt", "chosen", "rejected", "chosen_rating", "rejected_rating")} for row in found]


ANSWERS = ["plain", "warm", "long"]


def judged_as(aspect: str, folder: Path) -> tuple[list[Row], dict[int, Row]]:
    """Run the job ultrafeedback with the texts of distilabel's judge, read from the package. Return the rows that the
    judge rated, and by row those that became pairs."""
    job = recipe("ultrafeedback")
    show_prompts(job, [*ANSWERS, "ratings"], folder)
    job["sampling"]["max_tokens"] = 24
    ratings = job["steps"]["ratings"]
    system = judge_prompt({"instruction": "", "generations": ANSWERS}, aspect=aspect)[0]["content"]
    assert system.endswith(".\n")
    name = f"steps/tasks/templates/ultrafeedback/{aspect}.jinja2"
    text = (files("distilabel") / name).read_text(encoding="utf-8")
    # Jinja drops a line break at the end of a template, and ours one behind a block, too.
    ratings["system"] = system + "\n"
    ratings["prompt"] = (
        f"{{% set generations = [{', '.join(ANSWERS)}] %}}{{% set instruction = prompt %}}" + text.replace("%}", "+%}")
    )
    ratings["sampling"] = {"temperature": 2.0}  # ratings that differ from row to row, some rows alike
    ratings["schema"]["properties"]["ratings"]["items"]["maximum"] = 2
    pairs = job["steps"].pop("pairs")
    copies = {"asked": "prompt", "one": "plain", "two": "warm", "three": "long", "rated": "ratings_ratings"}
    job["steps"]["before"] = {"op": {"_target_": "operators.map.Map", "columns": copies}}
    job["steps"]["pairs"] = pairs
    data, rejects = run(job, folder, rows=10)
    assert {row["node"] for row in rejects} == {"pairs"}
    paired = {row["row"]: row for row in data}
    others = [{"row": r["row"], **json.loads(r["record"])} for r in rejects]
    return sorted([*paired.values(), *others], key=lambda row: row["row"]), paired


@pytest.mark.parametrize("aspect", ["overall-rating", "honesty", "instruction-following"])
def test_our_ultrafeedback_sends_the_same_prompts_and_makes_the_same_pairs(aspect, tmp_path):
    rows, paired = judged_as(aspect, tmp_path)
    assert len(rows) == 10
    for step, prompt in (("plain", "{}"), ("warm", "{}"), ("long", "{} /think")):
        asked = [{"instruction": prompt.format(row["asked"])} for row in rows]
        sent, found = run_task("TextGeneration", asked, {r[f"{step}_prompt_text"]: "any" for r in rows})
        assert [key_of(messages) for messages in sent] == [row[f"{step}_prompt_text"] for row in rows]
    given = [{"instruction": row["asked"], "generations": [row["one"], row["two"], row["three"]]} for row in rows]
    completions = {row["ratings_prompt_text"]: row["ratings"] for row in rows}
    assert len(completions) == len(rows)
    sent, found = ultrafeedback(given, completions, aspect=aspect, use_default_structured_output=True)
    assert [key_of(messages) for messages in sent] == list(completions)
    assert [row["ratings"] for row in found] == [row["rated"] for row in rows]
    alike = 0
    for row, pair in zip(rows, dpo_pairs(found), strict=True):
        # distilabel's form differs: its chosen and rejected repeat the prompt, which it gives as a text beside them.
        chosen, rejected = (pair[name][-1]["content"] for name in ("chosen", "rejected"))
        if row["row"] not in paired:
            # distilabel makes a pair where both sides are one text; ours is a reject, as it teaches nothing.
            assert chosen == rejected
            alike += 1
            continue
        ours = paired[row["row"]]
        assert ours["prompt"] == pair["chosen"][:-1] == pair["rejected"][:-1]
        assert (ours["chosen"], ours["rejected"]) == (pair["chosen"][-1:], pair["rejected"][-1:])
        assert (ours["score_chosen"], ours["score_rejected"]) == (pair["chosen_rating"], pair["rejected_rating"])
        assert chosen != rejected
    assert alike
    assert len({tuple(row["rated"]) for row in paired.values()}) > 2


@pytest.mark.parametrize("wording", ["distilabel", "job"])
def test_our_evol_instruct_sends_the_same_prompts_in_two_rounds_and_for_the_answer(wording, tmp_path):
    """With our eliminations switched off, as distilabel 1.5.3 has none. It draws a mutation for each row and round,
    ours follows from the row's number: so each row is compared with a task that has this one mutation."""
    job = recipe("evol_instruct")
    steps = job["steps"]
    begin = steps["begin"]["op"]["templates"]
    names = list(MUTATIONS)
    if wording == "distilabel":
        begin["change"] = f"{{{{ {json.dumps(list(MUTATIONS.values()))}[row % 5] }}}}"
    for name in ("once", "twice"):
        if wording == "distilabel":
            steps[name]["prompt"] = "{{ change.replace('<PROMPT>', instruction) }}"
        steps[name]["extract"] = "{{ completion.split('Prompt#:')[-1] | trim }}"  # distilabel's parsing
        steps[name]["sampling"]["min_tokens"] = 4  # an empty instruction can be sent to nobody
        steps[f"{name}_end"]["op"]["templates"]["instruction"] = "{{ new }}"
    show_prompts(job, ["once", "twice", "final"], tmp_path)
    job["sampling"]["max_tokens"] = 16
    del steps["dataset"]  # keeps the columns that are compared
    data, rejects = run(job, tmp_path, rows=10)
    assert (len(data), rejects) == (10, [])
    for i, row in enumerate(data):
        if wording == "distilabel":
            template = MUTATIONS[names[i % 5]]
            assert row["change"] == template
        else:
            template = recipe("evol_instruct")["steps"]["once"]["prompt"].replace("{{ instruction }}", "<PROMPT>")
            template = template.replace("{{ change }}", row["change"])
        completions = {row[f"{name}_prompt_text"]: row[f"{name}_completion"] for name in ("once", "twice")}
        completions[row["final_prompt_text"]] = row["final"]
        sent, (found,) = evol_instruct(
            [{"instruction": row["prompt"]}],
            completions,
            rounds=2,
            templates={"this": template},
            store_evolutions=False,
            include_original_instruction=False,
            generate_answers=True,
        )
        assert [key_of(messages) for messages in sent] == [row[f"{n}_prompt_text"] for n in ("once", "twice", "final")]
        assert (found["evolved_instruction"], found["answer"]) == (row["instruction"], row["final"])
    assert len({row["instruction"] for row in data}) > 5
