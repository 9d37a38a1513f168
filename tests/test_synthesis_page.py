"""The example of docs/synthesis.md leaves out what is near in meaning, in nights as at once, and goes on after its end
at a row too many."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from pipeline import PROJECT, load
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.run_dir.state_reading import reading

PAGE = (PROJECT / "docs/synthesis.md").read_text(encoding="utf-8")
AGAIN = "What is 2 plus 3?"
QUESTIONS = [AGAIN, "Sort fox, hare, goose.", AGAIN, "What is 2 plus 4?", AGAIN]


@pytest.fixture
def job(tmp_path) -> Path:
    """The example, with the model that ships in place of one for embeddings, in the folder of the questions."""
    text = PAGE.partition("<!-- example: distinct.yaml -->\n```yaml\n")[2].partition("```")[0]
    text = text.replace("/models/embedder.gguf", f"{PROJECT}/models/tiny/tiny-q8_0.gguf")
    path = tmp_path / "distinct.yaml"
    path.write_text(text.replace("questions.jsonl", f"{tmp_path}/questions.jsonl"), encoding="utf-8")
    return path


def run(job: Path, out: str, questions: list[str], *settings: str) -> int:
    lines = [json.dumps({"id": str(i), "question": text}) for i, text in enumerate(questions)]
    (job.parent / "questions.jsonl").write_text("\n".join(lines), encoding="utf-8")
    fixed = (f"job={job}", f"output_dir={job.parent / out}", "data.id_column=id", "report=false", "progress=none")
    return main([*fixed, "chunk_rows=2", "runtime.threads=1", *settings])


def table(frame: pl.LazyFrame) -> list[dict[str, object]]:
    return frame.collect().sort("row").to_dicts()


def test_the_first_of_the_questions_that_mean_the_same_stays_in_nights_as_at_once(job):
    at_once = ("nodes.distinct.op.semantic.threshold=0.9999", "append=true")
    assert run(job, "all", QUESTIONS, *at_once) == ExitCode.DONE
    assert run(job, "nights", QUESTIONS[:1], *at_once) == ExitCode.DONE
    assert run(job, "nights", QUESTIONS[:4], *at_once) == ExitCode.DONE
    assert run(job, "nights", QUESTIONS, *at_once) == ExitCode.DONE
    whole, nights = load(job.parent / "all"), load(job.parent / "nights")
    assert [row["question"] for row in table(whole.rows())] == [QUESTIONS[i] for i in (0, 1, 3)]
    assert table(nights.rows()) == table(whole.rows())
    reason = "1.00 like row 0 in embedding (semantic: threshold 0.9999)"
    for result in (whole, nights):
        assert [(row["row"], row["kind"], row["reason"]) for row in table(result.rejects())] == [
            (2, "filtered", reason),
            (4, "filtered", reason),
        ]


def test_a_run_that_keeps_too_many_says_what_to_do_and_goes_on_with_it(job, capsys):
    every = "nodes.distinct.op.semantic.threshold=1"
    assert run(job, "whole", QUESTIONS, every) == ExitCode.DONE
    assert run(job, "whole", QUESTIONS, "nodes.distinct.op.semantic.threshold=0.5") == ExitCode.CONFIG
    few = "+nodes.distinct.op.semantic.most_rows=2"
    assert run(job, "out", QUESTIONS, every, few, "dry_run=plan") == ExitCode.DONE
    assert "vectors of the rows that Dedup keeps: 1,024 bytes each, up to 0 MiB" in capsys.readouterr().out
    assert run(job, "out", QUESTIONS, every, few) == ExitCode.CONFIG
    assert "more than semantic.most_rows=2 rows" in capsys.readouterr().err
    assert run(job, "out", QUESTIONS, every, "+nodes.distinct.op.semantic.most_rows=3") == ExitCode.DONE
    whole, out = load(job.parent / "whole"), load(job.parent / "out")
    assert table(out.rows()) == table(whole.rows())
    with reading(job.parent / "out") as state:
        assert state.attempts == 2
