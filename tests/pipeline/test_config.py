"""The command line: every way to be wrong is exit code 2 with a message that helps, before anything is loaded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from pipeline.__main__ import main, worst
from pipeline.construct import build_graph
from pipeline.errors import ExitCode, GraphError
from pipeline.jobs import PROJECT
from pipeline.protocols import BaseOperator
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


@pytest.mark.parametrize(("text", "says"), [("a: [1", "cannot be read as YAML"), ("- 1", "must hold keys and values")])
def test_a_job_file_that_is_no_job(capsys, text, says):
    write_job("bad", text)
    assert says in refused(capsys, "job=bad.yaml")


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("sampling.temprature=1", "unknown key 'sampling.temprature'; did you mean sampling.temperature?"),
        ("temperature=1", "did you mean sampling.temperature?"),
        ("sede=1", "did you mean seed?"),
        ("data.nothing_known=1", "the keys of data are path, storage_options"),
        ("nodes.square.op.ad=1", "unknown key 'nodes.square.op.ad'"),
        ("sampling.top_k=many", "sampling.top_k: Value 'many'"),
        ("chunk_rows=many", "chunk_rows: Value 'many'"),
        ("chunk_rows=0", "chunk_rows=0 cannot work: it is 1 or more"),
        ("sampling.temperature=-1", "sampling.temperature=-1.0 cannot work"),
        ("progress=loud", "it is one of auto, bar, log, none"),
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
    assert "Jobs: job=quickstart" in refused(capsys, "quickstart")


def test_wrong_arguments_of_a_node_are_told_with_the_accepted_ones():
    nodes = {"numbers": NodeSettings({"_target_": f"{OPS}.Numbers", "row": 5})}
    with pytest.raises(GraphError, match=r"node 'numbers': .*it accepts: rows: .*did you mean 'rows' for 'row'"):
        build_graph(JobSettings(nodes=nodes))


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
    with pytest.raises(GraphError, match="options has no key 'sise'; its keys are size"):
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
    assert "results would go to outputs/squares" in capsys.readouterr().out
    assert [p.name for p in here.iterdir()] == ["squares.yaml"]


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
    assert main([*arguments, "max_error_rate=1"]) == ExitCode.DONE
    assert sorted(p.name for p in here.iterdir()) == ["outputs", "squares.yaml"]


def test_a_job_of_a_sweep_that_cannot_work_does_not_stop_the_others(here, capsys):
    assert main(["job=squares.yaml", "-m", "chunk_rows=0,5"]) == ExitCode.CONFIG
    assert len(list((here / "outputs").glob("squares-*/manifest.json"))) == 1


def test_the_worst_code():
    assert worst([]) is ExitCode.DONE
    assert worst([ExitCode.BUDGET, ExitCode.REJECTS, ExitCode.DONE]) is ExitCode.REJECTS
    assert worst([ExitCode.CONFIG, ExitCode.FAILED, ExitCode.INTERRUPTED]) is ExitCode.FAILED


@pytest.mark.parametrize(
    ("arguments", "code"), [(["job=nope"], 2), (["--help"], 0), (["job=squares.yaml", "x.y=1"], 2)]
)
def test_the_process_ends_with_the_code(arguments, code, here):
    command = [sys.executable, "-m", "pipeline", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stdout + done.stderr
