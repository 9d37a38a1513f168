"""The command line: every way to be wrong is exit code 2 with a message that helps, before anything is loaded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from pipeline import PROJECT
from pipeline.api.errors import ExitCode, GraphError
from pipeline.api.protocols import BaseOperator
from pipeline.cli.main import main, worst
from pipeline.config.build import build_graph
from pipeline.settings import JobSettings, NodeSettings

OPS = "tests.pipeline.job_ops"
NODES = f"""
nodes:
  numbers:
    op: {{_target_: {OPS}.Numbers, rows: 25, chunk_rows: "${{chunk_rows}}"}}
  square:
    inputs: numbers
    op: {{_target_: {OPS}.Square, add: 0, bad: "${{sampling.stop_token_ids}}"}}
  write:
    inputs: square
    op: {{_target_: {OPS}.Parquet}}
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Every test starts in a directory of its own, with a job file of squares."""
    monkeypatch.chdir(tmp_path)
    write_job("squares", "# Squares of numbers.\nchunk_rows: 10\nprogress: none\n" + NODES)
    return tmp_path


def write_job(name: str, text: str) -> None:
    Path(f"{name}.yaml").write_text(text)


def refused(capsys, *arguments: str) -> str:
    """The message of a command line that ends with exit code 2."""
    assert main(arguments) == ExitCode.CONFIG
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
    return shown.err


def test_no_job_lists_the_jobs(capsys):
    assert re.search(r"quickstart +Answers 200 prompts", refused(capsys))


def test_an_unknown_job_lists_the_jobs_and_the_closest(capsys):
    message = refused(capsys, "job=quikstart")
    assert "did you mean job=quickstart?" in message
    assert "  generate " in message


def test_a_job_file_that_is_not_there(capsys):
    assert "there is no job file nothing.yaml" in refused(capsys, "job=nothing.yaml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1", "cannot be read as YAML"),
        ("- 1", "must hold keys and values"),
        ("a: &a [*a]", "bad.yaml: an alias (*name) stands inside of what it names"),
    ],
)
def test_a_job_file_that_is_no_job(capsys, text, says):
    write_job("bad", text)
    assert says in refused(capsys, "job=bad.yaml")


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("sampling.temprature=1", "unknown key 'sampling.temprature'; did you mean sampling.temperature?"),
        ("temperature=1", "did you mean sampling.temperature?"),
        ("sede=1", "did you mean seed?"),
        ("+sampling.temprature=1", "unknown key 'sampling.temprature'; did you mean sampling.temperature?"),
        ("+sampling.structured.choice=[a]", "did you mean sampling.structured.choices?"),
        ("++model.foo.bar=1", "unknown key 'model.foo'; the keys of model are loader, path"),
        ("+target.accepted=5", "did you mean target.accepted_rows?"),
        ("+bench.foo=1", "unknown key 'bench.foo'"),
        ("+nodes.square.imputs=numbers", "did you mean inputs?; the keys of a node are op, inputs"),
        ("+foo=1", "unknown key 'foo'"),
        ("data.schema.id=string", "data.schema has no 'id' yet; to add it write +data.schema.id=..."),
        ("model.name=foo", "unknown key 'model.name'; the keys of model are loader, path"),
        ("sampling.structured.choices=[true]", "choices[0]: True is a boolean here, not a text: YAML reads words like"),
        ("sampling.stop=[a,1.5]", 'sampling.stop[1]: 1.5 is a number here, not a text; write "1.5", with the quotes'),
        ("sampling.bad_words=[true]", "yes, no, on, off, true and false are texts only in quotes"),
        ("data.prompt_column=7", 'data.prompt_column: 7 is a number here, not a text; write "7"'),
        ("output_dir=true", "output_dir: True is a boolean here"),
        ("sampling.per_row=[max_token]", "sampling.per_row=['max_token'] cannot work: did you mean max_tokens?"),
        ("sampling.top_p=2", "sampling.top_p=2.0 cannot work: allowed: above 0, up to 1 (1 is off)"),
        ("nodes.square.op._target_=Filter", "did you mean operators.filter.Filter?"),
        (
            "nodes.write.inputs=numbers",
            "node 'square': its output is read by no node; give it to one (nodes.write.inputs:",
        ),
        (
            "nodes.square.inputs=[]",
            "node 'square': has no inputs; write inputs: NODE (a graph has one source, and there",
        ),
        ("data.nothing_known=1", "the keys of data are path, storage_options"),
        ("nodes.square.op.ad=1", "unknown key 'nodes.square.op.ad' in the graph; to add it write +nodes"),
        ("nodes.sqare.inputs=numbers", "unknown key 'nodes.sqare': there is no such node"),
        ("+nodes.more={inputs: square}", "unknown key 'nodes.more': there is no such node"),
        ("nodes.square.imputs=numbers", "did you mean inputs?; the keys of a node are op, inputs, capacity_rows"),
        ("sampling.top_k=many", "sampling.top_k=many cannot work: it takes a whole number"),
        ("chunk_rows=many", "chunk_rows=many cannot work: it takes a whole number"),
        ("chunk_rows=0", "chunk_rows=0 cannot work: it is 1 or more"),
        ("sampling.temperature=-1", "sampling.temperature=-1.0 cannot work"),
        ("progress=loud", "it is one of auto, full, bar, log, json, none"),
        ("max_error_rate=2", "it is a share"),
        ("name=a/b", "it becomes the name of a directory"),
        ("nodes.square.on_error=explode", "on_error='explode' cannot work"),
        ("sampling=gredy", "sampling is one of creative, default, greedy, no_repeats; did you mean sampling=greedy?"),
        ("data.path=${nowhere}", "data.path: Interpolation key 'nowhere' not found"),
        ("target.accepted=5", "did you mean target.accepted_rows?"),
        ("target.accepted_rows=0", "target.accepted_rows=0 cannot work: it is 1 or more, or null"),
        ("max_tokens=5", "did you mean sampling.max_tokens?"),
        ("seed=[", "'seed=[' cannot be read as key=value"),
        ("seed=???", "seed has no value"),
        ("+nodes.square.op.factor=2", "node 'square': "),
        ("nodes.square.inputs=nubers", "node 'square': unknown input 'nubers'"),
        (f"nodes.square.op._target_={OPS}.Sqare", "has no 'Sqare'; did you mean 'Square'?"),
        ("nodes.square.op._target_=nowhere.Square", "there is no module 'nowhere'"),
        ("nodes.square.op._target_=Square", "names no module"),
        (f"nodes.square.op._target_={OPS}.OPS", "has no 'OPS'"),
        ("nodes.square.op._target_=builtins.dict", "is no operator"),
    ],
)
def test_a_wrong_argument(capsys, argument, says):
    arguments = ["job=squares.yaml", argument]
    if argument == "seed=???":
        arguments.append("+nodes.numbers.op.content=${seed}")
    assert says in refused(capsys, *arguments)
    assert not Path("outputs").exists()


def test_a_misspelt_key_in_a_job_file_names_the_file(capsys):
    write_job("bad", "sampling:\n  temprature: 1\n" + NODES)
    message = refused(capsys, "job=bad.yaml")
    assert "did you mean sampling.temperature?" in message
    assert "bad.yaml" in message


def test_a_value_that_is_missing(capsys):
    assert "sampling.top_k has no value; write sampling.top_k=..." in refused(
        capsys, "job=squares.yaml", "sampling.top_k=???"
    )
    assert "square.op.add has no value" in refused(capsys, "job=squares.yaml", "nodes.square.op.add=???")


def test_an_unknown_command(capsys):
    assert "did you mean doctor?" in refused(capsys, "docter")
    write_job("ask", "seed: 1\n")
    for words, job in ((["quickstart"], "quickstart"), (["ask.yaml"], "ask.yaml"), (["run", "ask.yaml"], "ask.yaml")):
        assert f"unknown command '{words[0]}'; a job is run with job={job}" in refused(capsys, *words)
    assert "there is no job 'ask'; did you mean job=ask.yaml" in refused(capsys, "job=ask")


def test_two_jobs_are_refused(capsys):
    assert "'job=squares.yaml' and 'job=quickstart': one job is run" in refused(
        capsys, "job=squares.yaml", "job=quickstart"
    )


def test_wrong_arguments_of_a_node_are_told_with_the_accepted_ones():
    nodes = {"numbers": NodeSettings({"_target_": f"{OPS}.Numbers", "row": 5})}
    with pytest.raises(
        GraphError, match=r"node 'numbers': .*there is no argument 'row'; did you mean rows.*it accepts: rows: "
    ):
        build_graph(JobSettings(nodes=nodes))


@pytest.mark.parametrize("target", ["collections.Counter", "pipeline.api.protocols.BaseOperator"])
def test_what_is_no_operator_is_told_what_one_is(target):
    with pytest.raises(GraphError, match=r"must inherit .*BaseOperator and have plan, and process or run"):
        build_graph(JobSettings(nodes={"read": NodeSettings({"_target_": target})}))


@dataclass
class Options:
    """A group as an operator declares it."""

    size: int = 1


class Sink(BaseOperator):
    """Takes a dataclass and a keyword of Python's."""

    def __init__(self, options: Options | None, as_: str) -> None:
        self.options, self.as_ = options, as_

    def plan(self, schema: object) -> None:
        """Takes anything."""

    def process(self, batch: object) -> tuple[()]:
        """Keeps nothing."""
        return ()


def test_mappings_become_the_dataclass_of_the_annotation_and_as_becomes_as_(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_ops", sys.modules[__name__])
    op = {"_target_": "my_ops:Sink", "options": {"size": 3}, "as": "judge"}
    nodes = {"n": NodeSettings({"_target_": f"{OPS}.Numbers", "rows": 5}), "s": NodeSettings(op, "n")}
    monkeypatch.setattr(Sink.__init__, "__annotations__", {"options": Options | None, "as_": str})
    sink = build_graph(JobSettings(nodes=nodes)).nodes["s"].op
    assert isinstance(sink, Sink)
    assert (sink.options, sink.as_) == (Options(3), "judge")
    op["options"] = {"sise": 3}
    with pytest.raises(GraphError, match="options has no key 'sise'; did you mean size"):
        build_graph(JobSettings(nodes=nodes))


@pytest.mark.parametrize("arguments", [["--help"], ["jobs"], ["job=squares.yaml", "--cfg", "job"]])
def test_what_only_tells_ends_with_0_and_writes_nothing(arguments, here, capsys):
    assert main(arguments) == 0
    assert capsys.readouterr().out
    assert [p.name for p in here.iterdir()] == ["squares.yaml"]


def test_cfg_job_prints_the_composed_config(capsys):
    main(["job=squares.yaml", "--cfg", "job", "seed=5"])
    composed = yaml.safe_load(capsys.readouterr().out)
    assert (composed["seed"], composed["name"], composed["chunk_rows"]) == (5, "squares", 10)


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
    assert lines["ask"] == "Render <- read: adds prompt_text: string"
    assert lines["distinct"] == "Dedup <- whole: the same columns"
    assert lines["judge_columns"] == "Select <- question: drops prompt_text, prompt_ids"
    assert re.match(r"Rename <- columns: adds instruction: string.*; drops instruction_completion", lines["dataset"])
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


def test_a_job_runs_and_hydra_leaves_nothing_behind(here, capsys):
    assert main(["job=./squares.yaml"]) == 0
    assert sorted(p.name for p in here.iterdir()) == ["outputs", "squares.yaml"]
    assert [p.name for p in (here / "outputs").iterdir()] == ["squares"]


def test_modules_beside_the_job_file_are_importable(tmp_path, capsys):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "beside_the_job.py").write_text(f"from {OPS} import Square as Mine\n")
    (folder / "own.yaml").write_text(NODES.replace(f"{OPS}.Square", "beside_the_job.Mine"))
    assert main(["job=mine/own.yaml", "dry_run=true"]) == 0


def test_the_modules_of_the_project_are_importable_where_only_its_packages_are_installed(monkeypatch):
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p).resolve() != PROJECT])
    monkeypatch.delitem(sys.modules, "models.tiny.score", raising=False)
    monkeypatch.delitem(sys.modules, "models.tiny", raising=False)
    monkeypatch.delitem(sys.modules, "models", raising=False)
    assert main(["job=quickstart", "dry_run=plan"]) == ExitCode.DONE


def test_what_the_plan_of_ones_own_operator_raises_is_told_with_its_line_and_node(tmp_path, capsys):
    (tmp_path / "faulty_ops.py").write_text(
        "from tests.pipeline.job_ops import Square\n\n\nclass Faulty(Square):\n"
        "    def plan(self, schema):\n        return self.colums\n"
    )
    assert main(["job=squares.yaml", "nodes.square.op._target_=faulty_ops.Faulty"]) == ExitCode.FAILED
    told = capsys.readouterr().err
    assert 'faulty_ops.py", line 6' in told
    assert told.rstrip().endswith("raised by Faulty.plan, at node 'square'")


def test_config_dir_adds_jobs_and_options(tmp_path, capsys):
    for name, text in {"job/mine.yaml": "# Mine.\n" + NODES, "sampling/wild.yaml": "temperature: 5.0\n"}.items():
        (tmp_path / "extra" / name).parent.mkdir(parents=True)
        (tmp_path / "extra" / name).write_text(text)
    assert main(["job=mine", "sampling=wild", "--config-dir", "extra", "--cfg", "job"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["sampling"]["temperature"] == 5.0
    assert main(["jobs", "--config-dir=extra"]) == 0
    assert re.search(r"mine +Mine\.", capsys.readouterr().out)
    assert "there is no such directory" in refused(capsys, "job=mine", "--config-dir", "nowhere")


def test_a_sweep_gives_each_job_its_own_directory_and_ends_with_the_worst_code(here, capsys):
    arguments = ["job=squares.yaml", "-m", "seed=1,2", "sampling.stop_token_ids=[],[3]"]
    assert main(arguments) == ExitCode.REJECTS
    found = sorted(p.name for p in (here / "outputs").iterdir())
    assert len([name for name in found if name.startswith("squares-")]) == 4
    assert {name for name in found if not name.startswith("squares-")} <= {".hydra"}
    head, *lines = capsys.readouterr().out.splitlines()[-5:]
    assert head == "sweep: 4 jobs; exit code, settings, results"
    assert [line.split()[:-1] for line in lines] == [
        [str(int(code)), f"seed={seed}", f"sampling.stop_token_ids={ids}"]
        for seed in (1, 2)
        for ids, code in (("[]", ExitCode.DONE), ("[3]", ExitCode.REJECTS))
    ]
    assert sorted(Path(line.split()[-1]).name for line in lines) == [n for n in found if n.startswith("squares-")]
    assert main([*arguments, "max_error_rate=1"]) == ExitCode.DONE
    assert sorted(p.name for p in here.iterdir()) == ["outputs", "squares.yaml"]


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
    assert first.split()[:2] == ["4", "seed=1"]
    assert second.split(None, 2) == ["-", "seed=2", "not begun; the same command goes on"]
    assert main(["job=stops.yaml", "-m", "seed=1,2"]) == ExitCode.DONE


def test_a_job_of_a_sweep_that_cannot_work_does_not_stop_the_others(here, capsys):
    assert main(["job=squares.yaml", "-m", "chunk_rows=0,5"]) == ExitCode.CONFIG
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first.split(None, 2) == ["2", "chunk_rows=0", "not run: its settings cannot work, see above"]
    assert second.split()[:2] == ["0", "chunk_rows=5"]
    assert len(list((here / "outputs").glob("squares-*/manifest.json"))) == 1


def test_a_run_has_one_time_whenever_it_is_resumed(here, monkeypatch):
    text = NODES.replace("add: 0", "add: 0, fail_at: 15, broken: broken").replace(
        "rows: 25,", 'rows: 25, content: "${now:%Y-%m-%d %H:%M:%S.%f}",'
    )
    write_job("dated", "chunk_rows: 10\nmax_open_chunks: 1\nprogress: none\n" + text)
    (here / "broken").touch()
    assert main(["job=dated.yaml"]) == ExitCode.FAILED
    (here / "broken").unlink()
    saved = yaml.safe_load((here / "outputs/dated/config.yaml").read_text())
    monkeypatch.setattr("pipeline.config.compose._START", datetime(2031, 1, 31, 6))
    assert main(["job=dated.yaml"]) == ExitCode.DONE
    again = yaml.safe_load((here / "outputs/dated/config.yaml").read_text())
    assert again["now"] == saved["now"] < "2031"
    assert again["nodes"]["numbers"] == saved["nodes"]["numbers"]
    assert main(["job=dated.yaml", "overwrite=true"]) == ExitCode.DONE
    assert yaml.safe_load((here / "outputs/dated/config.yaml").read_text())["now"] == "2031-01-31T06:00:00"


def test_dated_outputs_are_one_run_a_day_and_a_day_can_be_named(here, monkeypatch):
    dated = "output_dir=outputs/nightly/${now:%Y-%m-%d}"
    for hour in (6, 18):
        monkeypatch.setattr("pipeline.config.compose._START", datetime(2026, 1, 31, hour))
        assert main(["job=squares.yaml", dated]) == ExitCode.DONE
    assert main(["job=squares.yaml", dated, "now=2026-01-29"]) == ExitCode.DONE
    assert sorted(path.name for path in (here / "outputs/nightly").iterdir()) == ["2026-01-29", "2026-01-31"]


def test_a_time_that_is_none_is_refused(capsys):
    assert "now='yesterday' cannot work" in refused(capsys, "job=squares.yaml", "now=yesterday")


def test_on_finish_is_told_from_the_command_line_and_its_keys_are_known(here, capsys):
    assert main(["job=squares.yaml", "on_finish.command=[touch,told]"]) == ExitCode.DONE
    assert (here / "told").exists()
    assert "did you mean on_finish.timeout_s?" in refused(capsys, "job=squares.yaml", "on_finish.timeout=3")


def test_the_worst_code():
    assert worst([]) is ExitCode.DONE
    assert worst([ExitCode.BUDGET, ExitCode.REJECTS, ExitCode.DONE]) is ExitCode.REJECTS
    assert worst([ExitCode.CONFIG, ExitCode.FAILED, ExitCode.INTERRUPTED]) is ExitCode.FAILED


def test_a_folder_that_is_called_operators_does_not_hide_ours(here):
    (here / "operators").mkdir()
    (here / "operators" / "__init__.py").write_text("raise SystemExit('not ours')\n")
    command = [sys.executable, "-m", "pipeline", "job=squares.yaml", "dry_run=plan"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "code"), [(["job=nope"], 2), (["--help"], 0), (["job=squares.yaml", "x.y=1"], 2)]
)
def test_the_process_ends_with_the_code(arguments, code, here):
    command = [sys.executable, "-m", "pipeline", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stdout + done.stderr
