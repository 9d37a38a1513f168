"""`dry_run=true`: what it finds out and prints, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from operators.engine.backend.fake import FakeModel
from pipeline.api.forecast import NOTHING, Forecast, Range
from pipeline.cli.main import main
from pipeline.dry_run.estimate import REPORT_BYTES, _combined, _memory, estimate_lines
from pipeline.dry_run.sample_run import NodeResult
from pipeline.run_dir.lock import locked
from tests.pipeline.command_line import NODES
from tests.sets import often

pytestmark = pytest.mark.slow("estimates, and runs what it estimated")

FAKE = ("model=fake", "sampling.max_tokens=12", "chunk_rows=10", "runtime.slots=4", "progress=none")
TINY = ("model=tiny", "sampling.max_tokens=6", "data.limit=20", "runtime.slots=4", "progress=none")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"say\t{i} \x1b[2J twice: “{i}”"} for i in range(35)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def told(capsys, *arguments: str, job: str = "generate", code: int = 0) -> str:
    data = ["data.path=rows.jsonl"] if job == "generate" else []
    assert main([f"job={job}", *data, *arguments]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def figure(text: str, name: str) -> str:
    found = re.search(rf"^  {name} +(.*)$", text, re.MULTILINE)
    assert found, text
    return found[1]


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


def test_it_writes_nothing_also_where_a_run_has_begun(here, capsys):
    before = files(here)
    told(capsys, *FAKE, "dry_run=true")
    assert files(here) == before
    main(["job=generate", "data.path=rows.jsonl", *FAKE])
    capsys.readouterr()
    before = files(here)
    assert "it is finished already, with 35 rows" in told(capsys, *FAKE, "dry_run=true")
    assert "estimate" in told(capsys, *FAKE, "dry_run=true", "overwrite=true")
    assert files(here) == before


def test_three_prompts_are_shown_as_they_are_with_what_does_not_print_escaped(here, capsys):
    text = told(capsys, *FAKE, "dry_run=true")
    shown = re.findall(r"^generate, prompt \d \((\d+) tokens\): (.*)$", text, re.MULTILINE)
    rows = [json.loads(line)["prompt"] for line in (here / "rows.jsonl").read_text().splitlines()[:3]]
    assert [json.loads(quoted) for _, quoted in shown] == rows
    assert [int(count) for count, _ in shown] == [len(row.encode()) for row in rows]  # the fake has a token a byte
    assert "\x1b" not in text
    assert "“0”" in text


def test_lengths_that_are_not_are_what_the_run_makes(here, capsys):
    text = told(capsys, *FAKE, "dry_run=true")
    assert "rows         35\n" in text
    main(["job=generate", "data.path=rows.jsonl", *FAKE])
    stages = pq.read_table("outputs/generate/metrics/stages.parquet").to_pydict()
    assert figure(text, "tokens out") == f"{sum(stages['tokens_out']):,}"  # so few rows are all begun


@pytest.mark.parametrize("job", often(["quickstart", "best_of_n", "embed"], "best_of_n"))
def test_every_kind_of_job_is_estimated_with_the_model_that_ships(job, here, capsys):
    text = told(capsys, *TINY, "dry_run=true", job=job)
    assert figure(text, "rows") == "20"
    assert re.fullmatch(r"[\d,]+", figure(text, "tokens in"))
    assert re.search(r"\d m?s", figure(text, "time"))
    assert len(re.findall(r", prompt \d \(", text)) == 3
    assert not list(here.glob("outputs/*"))


JUDGED = """
defaults:
  - override /flow: generate
data: {path: rows.jsonl}
nodes:
  judge:
    inputs: generate
    op: {_target_: operators.generate.Generate, sampling: {max_tokens: 2, ignore_eos: true}, as: judge}
  write:
    inputs: judge
"""


def test_nodes_that_share_an_engine_are_forecast_one_after_the_other(here, capsys):
    (here / "job.yaml").write_text(JUDGED)
    text = told(capsys, *FAKE, "sampling.ignore_eos=true", "dry_run=true", job="job.yaml")
    assert figure(text, "tokens out") == str(35 * (12 + 2))
    assert len(re.findall(r"^judge, prompt \d", text, re.MULTILINE)) == 3


SAMPLED = ("sampling.n=3", "sampling.temperature=1")
GATHERED = """
defaults:
  - override /flow: generate
data: {path: rows.jsonl}
nodes:
  slim:
    inputs: generate
    op: {_target_: operators.columns.Select, columns: [prompt, prompt_ids, completion]}
  first: {inputs: slim, op: {_target_: operators.dedup.Dedup, columns: [prompt]}}
  whole: {inputs: slim, op: {_target_: operators.gather.Gather, columns: [completion]}}
  distinct:
    inputs: first
    op: {_target_: operators.sinks.write_rows.WriteRows, output: "${output}", directory: distinct}
  judge:
    inputs: whole
    op: {_target_: operators.generate.Generate, sampling: {max_tokens: 2, ignore_eos: true}, as: judge}
  write:
    inputs: judge
"""


def test_rows_that_are_merged_are_as_many_fewer_and_rejects_that_name_a_row_one_line(here, capsys):
    (here / "job.yaml").write_text(GATHERED)
    text = told(capsys, *FAKE, *SAMPLED, "sampling.ignore_eos=true", "dry_run=true", job="job.yaml")
    assert figure(text, "tokens out") == f"{35 * (3 * 12 + 2):,}"
    assert re.search(r"^first: (\d+) of 105 rows of the sample are left out: \1 x \"equal to row N", text, re.MULTILINE)


def test_a_gather_that_rejects_everything_says_so_before_anything_runs(here, capsys):
    wrong = GATHERED.replace("columns: [prompt, prompt_ids, completion]", "drop: [finish_reason]")
    (here / "job.yaml").write_text(wrong)
    text = told(capsys, *FAKE, *SAMPLED, "dry_run=true", job="job.yaml", code=2)
    assert "node 'whole' rejects every row of the sample" in text
    assert "its samples differ in" in text


def test_a_benchmark_is_not_run(here, capsys):
    text = told(capsys, "dry_run=true", job="bench")
    assert figure(text, "time") == "unknown"


def test_what_the_store_has_costs_nothing(here, capsys):
    stored = (*FAKE, "store.path=store.sqlite", "output_dir=one")
    main(["job=generate", "data.path=rows.jsonl", "data.limit=21", *stored])
    capsys.readouterr()
    before = files(here)
    text = told(capsys, *FAKE, "store.path=store.sqlite", "output_dir=two", "dry_run=true")
    assert "60% of the rows are in the completion store" in text
    prompts = (here / "rows.jsonl").read_text().splitlines()[21:]
    assert figure(text, "tokens in") == str(sum(len(json.loads(line)["prompt"].encode()) for line in prompts))
    assert files(here) == before


def test_a_run_that_was_stopped_is_estimated_from_where_it_is(here, capsys):
    stopping = "  stop: {inputs: square, op: {_target_: tests.pipeline.job_ops.InterruptAt, at: 14, flag: flag}}\n"
    nodes = NODES.replace("inputs: square", "inputs: stop") + stopping
    (here / "job.yaml").write_text(f"chunk_rows: 10\nmax_open_chunks: 1\n{nodes}")
    Path("flag").touch()
    assert main(["job=job.yaml", "progress=none"]) == 4
    capsys.readouterr()
    text = told(capsys, "dry_run=true", "progress=none", job="job.yaml")
    assert "1 chunks, 10 rows, are committed" in text
    assert figure(text, "rows") == "15"


@pytest.mark.parametrize("dry_run", often(["true", "plan"], "true"))
def test_a_run_that_would_be_refused_is_refused_in_the_same_words(here, capsys, dry_run):
    main(["job=generate", "data.path=rows.jsonl", *FAKE])
    capsys.readouterr()
    changed = (*FAKE, "sampling.temperature=0.5")
    small, no_model = (*FAKE, "runtime.memory_limit=1KiB"), ("model.path=no.gguf", "output_dir=other")
    for settings, says in ((changed, "sampling.temper"), (small, "memory_limit"), (no_model, "does not exist")):
        dry = told(capsys, *settings, f"dry_run={dry_run}", code=2)
        assert says in dry
        assert dry == told(capsys, *settings, code=2)


def test_the_plan_loads_no_model(here, capsys, monkeypatch):
    def load(model: FakeModel) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(FakeModel, "__init__", load)
    assert "results would go to outputs/generate" in told(capsys, *FAKE, "dry_run=plan")


def test_it_says_who_works_there(here, capsys):
    out = here / "outputs/generate"
    with locked(out):
        assert f"another run works there now (pid {os.getpid()} on" in told(capsys, *FAKE, "dry_run=true")
    # A name that a killed run has left says nothing, though another process may have its number now.
    (out / ".lock").write_text(json.dumps({"pid": os.getppid(), "host": socket.gethostname(), "since": "then"}))
    assert "another run" not in told(capsys, *FAKE, "dry_run=true")


def test_rows_that_would_be_rejected_are_named_with_the_reason(here, capsys):
    with (here / "rows.jsonl").open("a") as file:
        file.write('{"prompt": null}\nnonsense\n')
    text = told(capsys, *FAKE, "dry_run=true")
    assert "read: 1 of 37 rows of the sample are rejected: 1 x " in text
    assert "render: 1 of 36 rows of the sample are rejected: 1 x " in text
    assert "column 'prompt' is null" in text


def test_where_every_row_would_be_it_ends_with_2(here, capsys):
    text = told(capsys, *FAKE, "runtime.max_sequence_tokens=8", "dry_run=true", code=2)
    assert "node 'generate' rejects every row of the sample: " in text
    assert "runtime.max_sequence_tokens is 8" in text


def test_an_operator_that_fails_fails_as_in_the_run(here, capsys):
    (here / "broken").touch()
    (here / "job.yaml").write_text(NODES.replace("add: 0", "add: 0, fail_at: 3, broken: broken"))
    for arguments in (["dry_run=true"], []):
        assert main(["job=job.yaml", "progress=none", *arguments]) == 1
        captured = capsys.readouterr()
        assert "the machine caught fire" in captured.out + captured.err


def test_what_a_calibration_would_choose_is_assumed_and_said(here, capsys, monkeypatch):
    monkeypatch.setenv("LLAMA_PIPELINE_CACHE", str(here / "cache"))
    text = told(capsys, "model=fake", "runtime=auto", "sampling.max_tokens=4", "dry_run=true")
    assert "note: generate: what runtime leaves open is chosen when the run begins; 16 slots are assumed" in text
    assert not (here / "cache").exists()


@pytest.mark.usefixtures("reports")
def test_the_report_that_a_run_draws_at_its_end_is_counted(here):
    assert main(["job=generate", "data.path=rows.jsonl", *FAKE, "output_dir=out"]) == 0
    assert REPORT_BYTES.low < (here / "out/report.html").stat().st_size < REPORT_BYTES.high


def test_under_a_target_one_round_is_estimated(here, capsys):
    """And not the hundred that may be read, nor the rows that the target lets pass."""
    said = told(capsys, *FAKE, "dry_run=true", "target.accepted_rows=5")
    assert figure(said, "rows") == "35"
    assert "target of 5 rows was reached" not in said


def test_what_other_threads_do_for_a_node_counts_where_it_takes_longer_and_its_memory_always():
    rows, reading = Range.exact(1), Forecast(Range.exact(1), seconds=Range.exact(50), read_s=Range.exact(7000))
    nodes = {"a": NodeResult(rows, 1, forecast=reading), "b": NodeResult(rows, 1, forecast=replace(reading))}
    seconds = _combined(rows, nodes, NOTHING).seconds
    assert seconds is not None
    assert 7000 <= seconds.likely < 7010
    more = replace(reading, memory=Range.exact(1e15))
    assert _memory(0.0, {"a": NodeResult(rows, 1, forecast=more)}).low >= 1e15 > _memory(0.0, nodes).high


def test_results_that_do_not_fit_are_warned_of(tmp_path):
    def lines(low: float, high: float) -> str:
        rows = Range.exact(1)
        found = Forecast(rows, disk_bytes=Range(low, low, high))
        return "\n".join(estimate_lines(found, NOTHING, tmp_path / "not" / "there"))

    assert "warning" not in lines(1e3, 1e6)
    assert "warning: the results may not fit" in lines(1e3, 1e18)
    assert "warning: the results will not fit" in lines(1e17, 1e18)
