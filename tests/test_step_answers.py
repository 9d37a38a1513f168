"""Steps: raw prompts, some of the rows, samples that a later step picks, errors, and the page of their keys."""

from __future__ import annotations

import re
from dataclasses import fields

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from operators.steps.step import Step
from pipeline import PROJECT, Job
from pipeline import run as run_job
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.pipeline.squares import files
from tests.sets import often_cases
from tests.test_steps import CANNOT_WORK, HEAD, OFTEN, SHORT, run

pytestmark = pytest.mark.slow("runs whole jobs with the model that ships")


def test_raw_bypasses_the_chat_template_and_says_so(tmp_path, capsys):
    job = 'steps: {more: {prompt: "{{ prompt }}", raw: true, sampling: {max_tokens: 4}, columns: [prompt_text]}}'
    row = pq.read_table(run(tmp_path, job, "out", "progress=log") / "data").to_pylist()[0]
    assert row["more_prompt_text"] == row["prompt"]
    assert "the model has a chat template, and nodes.more_prompt.op.template bypasses it" in capsys.readouterr().err


KINDS = {
    "plain": "sampling: {temperature: 1.0, max_tokens: 8}, columns: [seed, prompt_text]",
    "json": "schema: {mood: [good, bad], sure: [a, b]}, sampling: {temperature: 1.0}",
    "points": "choices: ['1 of 5', 'I say 4/5'], score: [1, 5], columns: [completion]",
    "sure": "choices: ['yes', 'no'], probability: true, columns: [choice_logprobs]",
    "start": "extract: '{{ completion[:2] }}', sampling: {max_tokens: 4}",
}


def test_where_asks_some_of_the_rows_and_nothing_about_the_others(tmp_path):
    """A row that is not asked may have no prompt: the template prints a null in it."""
    given = """
steps:
  text: {op: {_target_: operators.map.Map, columns: {text: "CASE WHEN row % 3 = 1 THEN NULL ELSE prompt END"}}}
"""
    only = "  only: {op: {_target_: operators.filter.Filter, where: row % 3 <> 1}}\n"
    some, alone = (
        run(
            tmp_path,
            given + before + "".join(f"  {n}: {{prompt: '{{{{ text }}}}', {k}{of}}}\n" for n, k in KINDS.items()),
            name,
        )
        for name, before, of in (("some", "", ", where: text IS NOT NULL"), ("alone", only, ""))
    )
    rows, asked = (pq.read_table(folder / "data").to_pylist() for folder in (some, alone))
    assert (len(rows), len(asked)) == (10, 7)
    answers = {row["row"]: row for row in asked}
    new = [name for name in rows[0] if name.startswith(tuple(KINDS))]
    assert len(new) == 12
    for row in rows:
        assert row == answers.get(row["row"], row | dict.fromkeys(new))


def test_the_probability_of_a_choice_is_that_of_the_scores_of_all_choices_and_is_kept(tmp_path):
    choices = ["yes", "no", "I cannot say"]
    keys = f"prompt: '{{{{ prompt }}}}', choices: {choices}, probability: true, columns: [prompt_text]"
    step = f"steps: {{sure: {{{keys}}}}}"
    first = run(tmp_path, step, "first")
    again = run(tmp_path, step, "again", f"store.path={first / 'completions.sqlite'}")
    assert files(again) == files(first)
    assert pc.sum(pq.read_table(again / "metrics/stages.parquet")["tokens_in"]).as_py() == 0

    rows = pq.read_table(first / "data").to_pylist()
    asked = [{"prompt": row["sure_prompt_text"], "text": choice} for row in rows for choice in choices]
    scored = Job("scored", model="tiny")
    scored.step("scored", op={"_target_": "operators.score.Score", "given_column": "prompt"})
    rendered = {"model.special_tokens_in_text": "parse", "progress": "none"}
    scores = run_job(scored, rendered, rows=asked, directory=tmp_path / "scored").rows().collect().sort("row")
    for row, logs in zip(rows, scores["logprob_sum"].to_numpy().reshape(-1, len(choices)), strict=True):
        probabilities = np.exp(logs) / np.exp(logs).sum()
        assert row["sure"] == choices[int(probabilities.argmax())]
        assert row["sure_probability"] == pytest.approx(probabilities.max(), abs=1e-5)
    assert len({row["sure"] for row in rows}) > 1


def test_the_page_explains_every_key_of_a_step():
    table = (
        (PROJECT / "docs/steps.md").read_text(encoding="utf-8").partition("## Keys")[2].partition("\n\nThe order")[0]
    )
    named = re.findall(r"`(\w+)`", "".join(line.split(" | ")[0] for line in table.splitlines()))
    assert sorted(named) == sorted(f.name for f in fields(Step))


def test_a_later_step_picks_by_its_score_among_the_samples_of_an_earlier_one(tmp_path):
    job = """
steps:
  reply: {prompt: "{{ prompt }}", examples: [{user: "2 + 2?", assistant: "4"}], n: 3,
          sampling: {temperature: 1.0, max_tokens: 24}}
  points: {prompt: "{{ reply }}", choices: ["1", "5"], extract: "{{ lineage[0] % 2 * 3 + 1 }}", score: [1, 5],
           pick: best}
"""
    rows = pq.read_table(run(tmp_path, job, "out") / "data").to_pylist()
    assert [(row["row"], row["lineage"], row["points"]) for row in rows] == [(i, [1], 4.0) for i in range(10)]


@pytest.mark.parametrize(("change", "says"), often_cases(CANNOT_WORK, *OFTEN))
def test_what_cannot_work_is_exit_2_and_names_the_step(tmp_path, capsys, change, says):
    (tmp_path / "job.yaml").write_text(HEAD + SHORT, encoding="utf-8")
    code = main([f"job={tmp_path / 'job.yaml'}", f"output_dir={tmp_path / 'out'}", "dry_run=plan", change])
    assert code == ExitCode.CONFIG
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
