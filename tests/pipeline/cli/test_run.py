"""Jobs and sweeps of a command line: what is run, what is written, and the exit code."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from hydra._internal.hydra import Hydra

from operators.engine.backend import fake
from operators.engine.backend.fake import FakeModel, inspect
from operators.engine.backend.loading import ModelSizes
from operators.settings import ModelSettings
from operators.sources import input_columns
from pipeline.api.errors import ExitCode, worst
from pipeline.cli.main import main
from pipeline.run_dir.manifest import read_manifest
from pipeline.run_dir.names import CARD
from tests.pipeline.command_line import NODES, OPS, here, in_process, refused, write_job

pytestmark = pytest.mark.slow("composes and runs jobs")

__all__ = ["here", "inspect"]  # the fixture: a directory with a job file of squares; of the loaders below


@pytest.mark.parametrize("arguments", [["--help"], ["jobs"], ["job=squares.yaml", "--cfg", "job"]])
def test_what_only_tells_ends_with_0_and_writes_nothing(arguments, here, capsys):
    assert main(arguments) == 0
    assert capsys.readouterr().out
    assert [p.name for p in here.iterdir()] == ["squares.yaml"]


def test_what_is_left_out_is_told_at_the_end_and_kept(here, capsys, monkeypatch):
    monkeypatch.setattr(input_columns, "SAMPLE_ROWS", 1)
    (here / "a.jsonl").write_text('{"prompt": "a"}\n' + '{"prompt": "b", "late": 1}\n' * 3)
    job = ["job=generate", "model=fake", "data.path=a.jsonl", "sampling.max_tokens=1", "chunk_rows=2", "output_dir=out"]
    assert main(job) == ExitCode.DONE
    said = "warning     3 rows at read: the key 'late' is left out"
    assert said in capsys.readouterr().out
    assert said in (here / "out/run.log").read_text()
    (told,) = read_manifest(here / "out")["warnings"]
    assert (told["node"], told["rows"]) == ("read", 3)
    assert "data.types={late: json} keeps it" in told["warning"]


def test_show_and_dry_run_print_and_write_nothing(here, capsys):
    assert main(["job=squares.yaml", "show=graph"]) == 0
    assert capsys.readouterr().out.startswith("flowchart LR\n    numbers([")
    assert main(["job=squares.yaml", "dry_run=true"]) == 0
    planned = capsys.readouterr().out
    assert "results would go to outputs/squares" in planned
    assert "flowchart" not in planned
    assert [p.name for p in here.iterdir()] == ["squares.yaml"]


def test_the_plan_says_of_each_node_only_what_it_does_to_the_columns(capsys):
    assert main(["job=self_instruct", "dry_run=plan"]) == ExitCode.DONE
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["read"] == "ReadPrompts, in rounds: id: string, kind: string, prompt: string, row: int64"
    assert lines["instruction_prompt"] == "Render <- read: adds prompt_text: string, prompt_literals: list<item: int32>"
    assert lines["distinct"] == "Dedup <- instruction_columns: the same columns"
    assert lines["answer_names"].startswith(
        "Rename <- answer: adds answer: string; drops prompt_text, prompt_literals, prompt_ids, answer_c"
    )
    assert re.match(r"Select <- verdict_keep: drops verdict_finish_reason, ", lines["verdict_columns"])
    assert lines["write"] == "WriteRows <- target: writes the rows"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("output.publish=nowhere://x", "output.publish=nowhere://x"),
        ("prometheus_file=nowhere/x.prom", "there is no directory nowhere"),
    ],
)
def test_a_dry_run_refuses_what_a_run_would_refuse(given, says, here, capsys):
    assert says in refused(capsys, "job=squares.yaml", "dry_run=true", given)


def test_config_dir_adds_jobs_and_options(tmp_path, capsys):
    for name, text in {"job/mine.yaml": "# Mine.\n" + NODES, "sampling/wild.yaml": "temperature: 5.0\n"}.items():
        (tmp_path / "extra" / name).parent.mkdir(parents=True)
        (tmp_path / "extra" / name).write_text(text)
    assert main(["job=mine", "sampling=wild", "--config-dir", "extra", "--cfg", "job"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["sampling"]["temperature"] == 5.0
    assert main(["jobs", "--config-dir=extra"]) == 0
    assert re.search(r"mine +Mine\.", capsys.readouterr().out)


def test_a_sweep_gives_each_job_its_own_directory_and_ends_with_the_worst_code(here, capsys):
    arguments = ["job=squares.yaml", "-m", "seed=1,2", "sampling.stop_token_ids=[],[3]"]
    assert main(arguments) == ExitCode.REJECTS
    found = sorted(p.name for p in (here / "outputs").iterdir())
    assert len([name for name in found if name.startswith("squares-")]) == 4
    (table,) = (name for name in found if not name.startswith("squares-") and name != ".hydra")
    head, names, *lines = capsys.readouterr().out.splitlines()[-6:]
    assert head == f"sweep: 4 jobs; all columns are in outputs/{table}"
    assert names.split()[:3] == ["exit", "seed", "sampling.stop_token_ids"]
    assert [line.split()[:3] for line in lines] == [
        [str(int(code)), str(seed), ids]
        for seed in (1, 2)
        for ids, code in (("[]", ExitCode.DONE), ("[3]", ExitCode.REJECTS))
    ]
    assert sorted(Path(line.split()[-1]).name for line in lines) == [n for n in found if n.startswith("squares-")]
    again = ["job=squares.yaml", "-m", "seed=1", "sampling.stop_token_ids=[3]"]
    assert main([*again, "max_error_rate=1"]) == ExitCode.DONE
    assert sorted(p.name for p in (here / "outputs").iterdir()) == found  # a job alone is no sweep: no table
    assert sorted(p.name for p in here.iterdir()) == ["outputs", "squares.yaml"]


def test_a_job_is_composed_once(here, monkeypatch):
    compose = Mock(wraps=Hydra.compose_config)
    monkeypatch.setattr(Hydra, "compose_config", lambda *a, **k: compose(*a, **k))
    assert main(["job=squares.yaml"]) == ExitCode.DONE
    assert compose.call_count == 1


def test_what_hydra_itself_is_asked_for_is_done(here):
    assert main(["job=squares.yaml", "show=graph", "hydra.run.dir=made"]) == ExitCode.DONE
    assert (here / "made").is_dir()


def test_what_hydra_says_of_a_job_may_refer_to_other_settings(here):
    names = ("hydra.job.name=${hydra.runtime.choices.output}", "output_dir=${hydra:job.name}_out")
    assert main(["job=squares.yaml", *names]) == ExitCode.DONE
    assert (here / "parquet_out").is_dir()


def test_a_job_file_may_be_a_sweep(here):
    job = yaml.safe_load((here / "squares.yaml").read_text())
    job["hydra"] = {"mode": "MULTIRUN", "sweeper": {"params": {"seed": "1,2"}}}
    (here / "squares.yaml").write_text(yaml.safe_dump(job))
    assert main(["job=squares.yaml"]) == ExitCode.DONE
    assert len(list((here / "outputs").glob("squares-*"))) == 2


def test_where_a_sweep_is_published_does_not_change_where_it_runs(here, capsys):
    arguments = ["job=squares.yaml", "-m", "seed=1,2", "output.card=false"]
    assert main([*arguments, f"output.publish=file://{here}/outputs/at/${{seed}}"]) == ExitCode.DONE
    assert len(list((here / "outputs/at").glob("*/manifest.json"))) == 2
    assert main(arguments) == ExitCode.DONE
    assert len(list((here / "outputs").glob("squares-*"))) == 2


def test_credentials_do_not_go_where_hydra_notes_a_sweep(here, capsys):
    arguments = ["job=squares.yaml", "-m", "seed=1,2", "output.storage_options={key: hunter2}"]
    assert "in a sweep the command line is written to outputs/.hydra" in refused(capsys, *arguments)
    assert list(here.rglob("*.yaml")) == [here / "squares.yaml"]


def test_an_interrupt_ends_a_sweep_and_says_what_was_not_begun(here, capsys):
    stop = f"  stop: {{inputs: square, op: {{_target_: {OPS}.InterruptAt, at: 15, flag: flag}}}}\n"
    write_job("stops", "progress: none\n" + NODES.replace("inputs: square", "inputs: stop") + stop)
    (here / "flag").touch()
    assert main(["job=stops.yaml", "-m", "seed=1,2"]) == ExitCode.INTERRUPTED
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first.split()[:2] == ["4", "1"]
    assert second.split(None, 2) == ["-", "2", "not begun; the same command goes on"]
    assert main(["job=stops.yaml", "-m", "seed=1,2"]) == ExitCode.DONE


def test_a_job_of_a_sweep_that_cannot_work_does_not_stop_the_others(here, capsys):
    assert main(["job=squares.yaml", "-m", "chunk_rows=0,5"]) == ExitCode.CONFIG
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first.split(None, 2) == ["2", "0", "not run: its settings cannot work, see above"]
    assert second.split()[:2] == ["0", "5"]
    assert len(list((here / "outputs").glob("squares-*/manifest.json"))) == 1


def test_a_card_is_asked_for_on_the_command_line_or_in_the_job_file(here):
    (here / "card.yaml").write_text((here / "squares.yaml").read_text() + "output: {card: true}\n")
    cards = {
        "a": ["squares.yaml", "output.card=true"],
        "b": ["squares.yaml", "output.card.license=mit"],
        "c": ["card.yaml"],
    }
    for out, (job, *given) in cards.items():
        assert main([f"job={job}", *given, f"output_dir={out}"]) == ExitCode.DONE
        assert ("license: mit" in (here / out / CARD).read_text()) == (out == "b")


def test_the_worst_code():
    assert worst([]) is ExitCode.DONE
    assert worst([ExitCode.BUDGET, ExitCode.REJECTS, ExitCode.DONE]) is ExitCode.REJECTS
    assert worst([ExitCode.CONFIG, ExitCode.FAILED, ExitCode.INTERRUPTED]) is ExitCode.FAILED


def test_a_folder_that_is_called_operators_does_not_hide_ours(here):
    (here / "operators").mkdir()
    (here / "operators" / "__init__.py").write_text("raise SystemExit('not ours')\n")
    done = in_process(here, "job=squares.yaml", "dry_run=plan")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reason_is_told_as_it_is_as_far_as_all_its_rows_have_it(here, capsys):
    (here / "a.jsonl").write_text('{"prompt": "a"}\n{"prompt": null}\n{"prompt": null}\n')
    job = ["job=generate", "model=fake", "data.path=a.jsonl", "sampling.max_tokens=1", "max_error_rate=1"]
    assert main([*job, "output_dir=same"]) == ExitCode.DONE
    assert "2  error at render: column 'prompt' is null" in capsys.readouterr().out
    (here / "b.jsonl").write_text('{"prompt": "a", "n": 1}\n{"n": "x"}\n{"n": "y"}\n')
    assert main([*job, "data.path=b.jsonl", "output_dir=other"]) == ExitCode.DONE
    assert "2  error at read: column 'n' is int64, the value is '…'" in capsys.readouterr().out


def test_what_is_left_out_is_counted_in_every_round_of_a_target(here, monkeypatch):
    monkeypatch.setattr(input_columns, "SAMPLE_ROWS", 1)
    (here / "a.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "late": 1}\n{"prompt": "c", "late": 1}\n')
    job = ["job=generate", "model=fake", "data.path=a.jsonl", "sampling.max_tokens=1", "output_dir=out"]
    assert main([*job, "chunk_rows=2", "target.accepted_rows=8", "target.chunk_rows=4"]) == ExitCode.DONE
    (told,) = read_manifest(here / "out")["warnings"]
    assert told["rows"] == 5  # of rows 0 to 7 those that are not the first of their round


events: list[str] = []


class Weights(FakeModel):
    """The fake model, with a name in `events`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        events.append(f"load {name}")

    def close(self) -> None:
        events.append(f"close {self.name}")


def load_a(settings: ModelSettings) -> FakeModel:
    return Weights("a")


def load_b(settings: ModelSettings) -> FakeModel:
    return Weights("b")


def test_a_sweep_frees_a_model_before_it_loads_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        f"{__name__}.inspect", lambda s: replace(fake.inspect(s), sizes=ModelSizes(1 << 20, fake.N_VOCAB))
    )
    events.clear()
    Path("prompts.jsonl").write_text('{"prompt": "x"}\n')
    loaders = ",".join(f"{__name__}:load_{name}" for name in "ab")
    job = ("job=generate", "model=fake", "data.path=prompts.jsonl", "sampling.max_tokens=4", "progress=none")
    assert main((*job, "-m", f"model.loader={loaders}", "seed=1,2")) == ExitCode.DONE
    assert events == ["load a", "close a", "load b", "close b"]


def test_what_changes_no_result_does_not_change_where_a_sweep_runs_but_a_sweep_over_it_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nodes = {
        "numbers": {"op": {"_target_": "tests.pipeline.job_ops.Numbers", "rows": 20}},
        "square": {"inputs": "numbers", "op": {"_target_": "tests.pipeline.job_ops.Square", "bad": [3]}},
        "write": {"inputs": "square", "op": {"_target_": "tests.pipeline.job_ops.Parquet"}},
    }
    Path("squares.yaml").write_text(yaml.safe_dump({"progress": "none", "report": False, "nodes": nodes}))
    sweep = ["job=squares.yaml", "target.accepted_rows=15", "-m", "seed=1"]
    assert main(sweep) == ExitCode.REJECTS
    assert main([*sweep, "max_error_rate=0.5", "target.max_minutes=9e0", 'on_finish.command=["true"]']) == ExitCode.DONE
    assert len(list(Path("outputs").glob("squares-*"))) == 1
    assert main(["job=squares.yaml", "-m", "max_error_rate=0.4,0.5"]) == ExitCode.DONE
    assert len(list(Path("outputs").glob("squares-*"))) == 3
