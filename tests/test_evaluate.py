"""job=evaluate with every metric, on the model that ships: rows, columns, the table at the end; two runs compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from operators.prompts.columns import used_columns
from operators.prompts.template import Template
from pipeline import PROJECT, run
from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.main import main
from pipeline.config.compose import composed
from pipeline.config.jobs import find_job
from tests.sets import often

pytestmark = pytest.mark.slow("runs whole jobs with the model that ships")

QUIET = ("progress=none", "report=false", "runtime.slots=4", "sampling.max_tokens=24", "chunk_rows=4")
ADDED = {"f1": ["correct", "f1"], "judge": ["verdict", "verdict_probability", "correct"]}
QUESTIONS = PROJECT / "jobs/data/evaluate.jsonl"


def evaluated(directory: Path, *settings: str) -> list[dict[str, Any]]:
    assert main(["job=evaluate", f"output_dir={directory}", *QUIET, *settings]) == ExitCode.DONE
    return [row for path in sorted(directory.glob("data/*.parquet")) for row in pq.read_table(path).to_pylist()]


@pytest.mark.parametrize(
    "metric", often(["exact", "normalised", "f1", "regex", "contains", "judge", "choice"], "f1", "judge", "choice")
)
def test_a_metric_grades_every_row_and_tells_the_accuracy(metric, tmp_path, capsys):
    rows = evaluated(tmp_path / "out", f"metric={metric}", "data.limit=12", "steps.grade.op.by=subject")
    assert len(rows) == 12
    added = ADDED.get(metric, ["correct"])
    assert list(rows[0])[-len(added) :] == added
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    right = sum(row["correct"] for row in rows)
    assert ["all", str(right), "12", f"{right / 12:.1%}"] in [line[:4] for line in lines]
    assert {line[0] for line in lines if line[2:3] == ["2"]} == {row["subject"] for row in rows}
    if metric == "choice":
        assert [row["correct"] for row in rows] == [row["choice"] == row["answer"] for row in rows]
        assert right > 9
    if metric == "judge":
        assert [row["correct"] for row in rows] == [row["verdict"] == "yes" for row in rows]


@pytest.mark.parametrize(
    ("given", "row", "shown"),
    [
        ({}, {"expected": "a", "answer": "b"}, "a"),
        ({}, {"answer": 42}, "42"),
        ({}, {"expected": ["a", None, "b"]}, "a or b"),
        ({"steps.grade.op.expected": "the gold"}, {"the gold": "c", "expected": "a"}, "c"),
    ],
)
def test_a_judge_is_shown_what_every_other_metric_compares_with(given, row, shown):
    job = composed(find_job("evaluate"), {"metric": "judge"}, given)
    prompt = Template(job.nodes["verdict_prompt"].op["messages"][0]["content"], "prompt", strict=True)
    used_columns(prompt, pa.schema([(name, pa.string()) for name in ("question", "completion", *row)]))
    lines = prompt.render({"question": "Q", "completion": "C", **row}).splitlines()
    assert lines[:3] == ["Question: Q", f"Right answer: {shown}", "Answer: C"]


def test_numbers_of_a_file_of_ones_own_with_samples_and_a_comparison(tmp_path, capsys):
    """The file has neither the columns nor the form of the one that ships; a row without a number is not counted."""
    sums = [("How much is 42 - 11?", "42 - 11 is\n#### 31"), ("Calculate 18 + 14.", "#### 32"), ("Why?", "Because")]
    lines = [json.dumps({"prompt": prompt, "solution": solution}) for prompt, solution in sums]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines), encoding="utf-8")
    own = (f"data.path={tmp_path / 'sums.jsonl'}", "data.prompt_column=prompt", "steps.grade.op.expected=solution")
    settings = ("metric=number", *own, "sampling.n=2", "sampling.temperature=0.5", "max_error_rate=1")
    rows = evaluated(tmp_path / "a", *settings)
    assert [(row["row"], row["lineage"]) for row in rows] == [(0, [0]), (0, [1]), (1, [0]), (1, [1])]
    right = sum(row["correct"] for row in rows)
    assert right
    out = capsys.readouterr().out
    assert "they are of 2 prompts" in out
    assert f"2 rows have no grade (errors) and are not counted; as wrong ones they would make it {right / 6:.1%}" in out
    evaluated(tmp_path / "b", *settings, "seed=1")
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "correct" in capsys.readouterr().out


def test_from_python(tmp_path):
    given: dict[str, Any] = {"data": {"limit": 4}, "steps.grade.op.by": "subject", "runtime.slots": 4, "report": False}
    result = run("evaluate", metric="choice", output_dir=tmp_path / "out", progress="none", **given)
    assert {"choice", "correct"} <= set(result.rows().collect_schema())
    with pytest.raises(ConfigError, match="metric='bleu' is no option; there are choice, contains"):
        run("evaluate", metric="bleu", output_dir=tmp_path / "out")


def test_another_job_takes_a_metric_too(tmp_path, capsys):
    out = tmp_path / "out"
    given = (f"data.path={QUESTIONS}", "data.prompt_column=question", "data.limit=4", "model=tiny", "metric=contains")
    assert main(["job=generate", f"output_dir={out}", *QUIET, *given]) == ExitCode.DONE
    assert "grade: contains, completion against answer" in capsys.readouterr().out
