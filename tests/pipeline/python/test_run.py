"""Jobs from Python: the same bytes as from the command line, with exceptions instead of exit codes."""

from __future__ import annotations

import doctest
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest

import pipeline
from operators.llama import model
from pipeline import PROJECT, Job, estimate, load, plan, run
from pipeline.api.errors import ConfigError, ExitCode, InputError, NodeFailed
from pipeline.cli.main import main
from pipeline.config.keys import options
from pipeline.python import run as rooms
from pipeline.python.compose import settings_from
from pipeline.run_dir.names import INPUT
from pipeline.settings import WITH_OPTIONS, ClusterSettings
from tests.sets import often

pytestmark = pytest.mark.slow("runs whole jobs from Python")

QUIET: dict[str, Any] = {"progress": "none", "report": False}
PROMPTS = [{"id": i, "prompt": f"Reverse these items: pear, fig, {i}", "tags": ["a", None]} for i in range(7)]
TABLE = pa.Table.from_pylist(PROMPTS)
FEW = {"data.limit": 5, "sampling.max_tokens": 8}


def parts(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((directory / "data").iterdir())}


def test_the_bytes_are_those_of_the_command_line(tmp_path):
    made = run("quickstart", FEW, directory=tmp_path / "python", seed=3, **QUIET)
    typed = [f"{key}={value}" for key, value in FEW.items()]
    assert main(["job=quickstart", "seed=3", *typed, f"output_dir={tmp_path / 'typed'}", "progress=none"]) == 0
    assert parts(made.directory) == parts(tmp_path / "typed")
    assert main(["job=quickstart", "seed=3", *typed, f"output_dir={made.directory}", "progress=none"]) == 0
    assert load(made.directory).counts["data_rows"] == 5


FORMS: dict[str, Callable[[], Any]] = {
    "dicts": lambda: PROMPTS,
    "generator": lambda: iter(PROMPTS),
    "arrow": lambda: TABLE,
    "batch": lambda: TABLE.to_batches()[0],
    "reader": lambda: TABLE.to_reader(2),
    "polars": lambda: pl.DataFrame(PROMPTS),
    "lazy": lambda: pl.LazyFrame(PROMPTS),
    "pandas": lambda: pd.DataFrame(PROMPTS),
    "datasets": lambda: datasets.Dataset.from_list(PROMPTS),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    directory = tmp_path_factory.mktemp("plain")
    return run(rows=FORMS["arrow"](), model="tiny", sampling={"max_tokens": 4}, directory=directory, **QUIET)


@pytest.mark.parametrize("form", often(FORMS, "dicts", "generator"))
def test_rows_of_every_kind_give_the_same_results(tmp_path, plain, form):
    made = run(rows=FORMS[form](), model="tiny", sampling={"max_tokens": 4}, directory=tmp_path / form, **QUIET)
    assert made.rows().collect().drop("tags").equals(plain.rows().collect().drop("tags"))
    assert made.rows().select(pl.col("tags").list.first()).collect()["tags"].to_list() == ["a"] * 7


def test_prompts_alone_are_rows():
    made = run(rows=["pear", "fig"], model="tiny", sampling={"max_tokens": 2}, **QUIET)
    assert made.rows().collect()["prompt"].to_list() == ["pear", "fig"]
    assert made.arrow().num_rows == 2
    assert made.dataset()["prompt"] == ["pear", "fig"]
    assert made.rejects().collect().is_empty()
    assert made.metrics("steps").collect().height > 0
    assert "<iframe" in made.report()._repr_html_()
    assert made.outcome is ExitCode.DONE
    assert "2 rows" in repr(made)


LAWS = pytest.mark.laws


@pytest.mark.parametrize(
    "rows",
    [
        [],
        pytest.param(iter([]), marks=LAWS),
        pytest.param(pl.DataFrame({"prompt": []}), marks=LAWS),
        pytest.param(pa.table({"prompt": ["a"]}).slice(1), marks=LAWS),
    ],
)
def test_no_rows_are_what_data_empty_says(tmp_path, rows):
    with pytest.raises(ConfigError, match=r"the input has no rows .* write data\.empty=ok"):
        run(rows=rows, model="fake", directory=tmp_path / "out", **QUIET)
    made = run(rows=rows, model="fake", directory=tmp_path / "out", data={"empty": "ok"}, **QUIET)
    assert made.outcome is ExitCode.DONE
    assert "0 rows" in repr(made)
    assert "the input has no rows" in (tmp_path / "out/run.log").read_text().lower()


def test_of_a_run_without_a_row_the_first_reject_is_told(tmp_path):
    (tmp_path / "job.yaml").write_text(
        "steps: {only: {op: {_target_: operators.filter.Filter, where: prompt = 'y'}}}\n"
    )
    for job, rows, told in (
        ("generate", ["", ""], r"2 of its rows are rejects, the first \(row 0\) at render: column 'prompt' is empty"),
        (str(tmp_path / "job.yaml"), ["x"], r"1 of its rows are filtered, the first \(row 0\) at only: .*prompt = 'y'"),
    ):
        made = run(job, rows=rows, model="fake", directory=tmp_path / str(len(rows)), **QUIET)
        with pytest.raises(ConfigError, match=rf"{told}.*; .*/rejects has all"):
            made.rows()


@pytest.mark.parametrize(
    ("job", "settings", "error", "said"),
    [
        ("quickstrt", {}, ConfigError, "did you mean job=quickstart"),
        ("quickstart", {"sampling.max_toknes": 3}, ConfigError, "did you mean sampling.max_tokens"),
        ("quickstart", {"sampling": {"max_tokens": "x"}}, ConfigError, "it takes a whole number"),
        ("quickstart", {"sampling": "hot"}, ConfigError, "there are creative, default"),
        ("quickstart", {"model": "nowhere.gguf"}, InputError, "nowhere.gguf does not exist"),
        ("quickstart", {"seed": object()}, ConfigError, "nothing that a job file can hold"),
        ("generate", {}, ConfigError, "data.path is not set"),
    ],
)
def test_what_cannot_work_is_an_exception_that_says_what_to_write(job, settings, error, said):
    with pytest.raises(error, match=said):
        run(job, settings, **QUIET)


def fails(row: dict[str, Any]) -> dict[str, Any]:
    raise ValueError(f"no {row['prompt']}")


def test_a_run_that_fails_raises_and_goes_on(tmp_path):
    job = Job("calls", data={"path": str(PROJECT / "jobs/data/quickstart.jsonl")})
    job.node("read", "operators.sources.read_prompts.ReadPrompts")
    job.node("call", "operators.call.Call", "read", function=fails)
    job.node("write", "operators.sinks.write_rows.WriteRows", "call")
    with pytest.raises(NodeFailed, match="no Put these words"):
        run(job, {"data.limit": 3}, directory=tmp_path / "out", **QUIET)
    assert load(tmp_path / "out").counts["data_rows"] == 0


def test_a_job_of_python_is_the_file_that_it_saves(tmp_path):
    job = Job("pairs", {"sampling.max_tokens": 6}, model="tiny", data={"path": str(PROJECT / "jobs/data/chat.jsonl")})
    job.step("first", prompt="Reverse these items: {{ id }}, fig").step("second", prompt="And {{ first }}?", n=2)
    made = run(job, {"data.limit": 3}, directory=tmp_path / "out", **QUIET)
    saved = job.save(tmp_path / "pairs.yaml")
    assert main([f"job={saved}", "data.limit=3", f"output_dir={tmp_path / 'typed'}", "progress=none"]) == 0
    assert parts(made.directory) == parts(tmp_path / "typed")
    assert main([f"job={saved}", "data.limit=3", f"output_dir={made.directory}", "progress=none"]) == 0  # done already
    with pytest.raises(ConfigError, match="has 'first' already"):
        job.step("first", prompt="x")


CELL = """
LIMIT = {limit}
def cut(text): return text[:LIMIT]
def short(row): return {{"short": cut(row["prompt"])}}
"""


def test_a_function_of_a_notebook_is_another_job_when_it_is_defined_anew(tmp_path, monkeypatch):
    """Old results came back silently: no file holds its code."""
    cells = vars(sys.modules["__main__"])
    for name in ("LIMIT", "cut", "short"):
        monkeypatch.setitem(cells, name, None)  # taken out again at the end

    def job(limit: int) -> Job:
        exec(compile(CELL.format(limit=limit), "<cell>", "exec"), cells)
        made = Job("short").node("read", "operators.sources.read_prompts.ReadPrompts")
        made.node("short", "operators.call.Call", "read", function=cells["short"], columns={"short": "string"})
        return made.node("write", "operators.sinks.write_rows.WriteRows", "short")

    given: dict[str, Any] = {"rows": ["What is 2 + 3?"], "directory": tmp_path / "out", **QUIET}
    assert run(job(4), **given).rows().collect()["short"].to_list() == ["What"]
    assert run(job(4), **given).outcome is ExitCode.DONE
    with pytest.raises(ConfigError, match="LIMIT of __main__, code of the node 'short', has changed"):
        run(job(7), **given)
    assert run(job(7), overwrite=True, **given).rows().collect()["short"].to_list() == ["What is"]
    with pytest.raises(ConfigError, match=r"cannot name __main__.short: .* put it into a module"):
        job(7).save(tmp_path / "short.yaml")
    assert not (tmp_path / "short.yaml").exists()
    before = cells["short"]
    job(7)
    with pytest.raises(ConfigError, match=r"is not what __main__.short is now"):
        Job("short").node("short", "operators.call.Call", "read", function=before)


def test_other_rows_in_the_same_directory_are_refused(tmp_path):
    run(rows=["a"], model="tiny", sampling={"max_tokens": 2}, directory=tmp_path / "out", **QUIET)
    before = (tmp_path / "out" / INPUT).stat().st_mtime_ns
    run(rows=["a"], model="tiny", sampling={"max_tokens": 2}, directory=tmp_path / "out", **QUIET)
    assert (tmp_path / "out" / INPUT).stat().st_mtime_ns == before
    given: dict[str, Any] = {"model": "tiny", "sampling": {"max_tokens": 2}, "directory": tmp_path / "out"}
    assert "it is finished already, with 1 rows" in str(plan(rows=["a"], **given))
    assert estimate(rows=["a"], **given).forecast is None
    for call in (plan, estimate):
        with pytest.raises(ConfigError, match="other settings"):
            call(rows=["b"], **given)
    assert (tmp_path / "out" / INPUT).stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="has a run with other rows"):
        run(rows=["b"], model="tiny", sampling={"max_tokens": 2}, directory=tmp_path / "out", **QUIET)
    assert (tmp_path / "out" / INPUT).stat().st_mtime_ns == before
    again = {"sampling": {"max_tokens": 2}, "directory": tmp_path / "out", "overwrite": True, **QUIET}
    assert run(rows=["b"], model="tiny", **again).rows().collect()["prompt"].to_list() == ["b"]


@pytest.mark.parametrize("key", often(["dry_run", "show"], "dry_run"))
def test_a_run_that_is_to_run_nothing_is_refused(key, tmp_path):
    with pytest.raises(ConfigError, match=r"use pipeline.plan or pipeline.estimate"):
        run("quickstart", {key: "plan"}, directory=tmp_path / "out", **QUIET)
    assert not (tmp_path / "out").exists()


def test_two_runs_in_turn_load_the_model_once(monkeypatch):
    loads = []
    rooms._models.close()
    load_one = model.load

    @functools.wraps(load_one)
    def counted(settings: Any) -> Any:
        loads.append(settings.path)
        return load_one(settings)

    monkeypatch.setattr(model, "load", counted)
    for seed in (1, 2):
        run("quickstart", FEW, seed=seed, **QUIET)
    assert len(loads) == 1
    run("diffuse", {"data.limit": 1, "sampling.max_tokens": 8}, **QUIET)  # another model: the first is closed
    run("quickstart", FEW, **QUIET)
    assert len(loads) == 3


def without_free(lines: list[str]) -> list[str]:
    """The lines of a plan, without the memory that is free just now."""
    return [re.sub(r"\(.* free\)", "", line) for line in lines]


def test_plan_and_estimate_say_what_a_dry_run_says(capfd, tmp_path):
    assert main(["job=quickstart", "dry_run=plan", f"output_dir={tmp_path / 'out'}"]) == 0
    lines = str(plan("quickstart", directory=tmp_path / "out")).splitlines()
    assert lines[-1] == f"results would go to {tmp_path / 'out'}"
    assert without_free(capfd.readouterr().out.splitlines()) == without_free(lines)
    assert plan("quickstart").graph.startswith("flowchart")
    found = estimate("quickstart", FEW)
    assert "estimate: what is likely" in str(found)
    assert found.forecast is not None
    assert found.forecast.rows_out.likely == 5
    assert found.memory is not None
    assert found.memory.likely > 1e6
    assert "read      ReadPrompts: prompt: string, row: int64" in str(plan(rows=["a"], model="tiny"))


@pytest.mark.parametrize(
    ("names", "heavy"), [("pipeline", "llama_cpp pyarrow hydra polars"), ("pipeline.python.run", "llama_cpp")]
)
def test_importing_costs_nothing_and_loads_nothing(names, heavy):
    code = f"import sys, {names}; print(sorted(set('{heavy}'.split()) & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'runs_'"):
        pipeline.runs_  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("name", often(pipeline.__all__, "Job", "plan", "run"))
def test_every_public_name_has_an_example_that_runs(name):
    found = getattr(pipeline, name)
    assert found.__doc__
    module = importlib.import_module(found.__module__)
    examples = doctest.DocTestFinder(recurse=False).find(found, name, module, extraglobs={})
    (example,) = [one for one in examples if one.examples]
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize(
    "given", [{"cluster": "processes", "cluster.workers": 3}, {"cluster": {"pool": "processes", "workers": 3}}], ids=str
)
def test_workers_are_chosen_as_on_the_command_line(given):
    assert settings_from("quickstart", given, str).cluster == ClusterSettings(pool="processes", workers=3)
    assert settings_from(Job("quickstart", {**given, "nodes": {}}), {}, str).cluster.workers == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cluster.workers": 3}, "'cluster.workers' takes an option of cluster beside it: cluster=processes or ray"),
        ({"cluster": {"workers": 3}}, "'cluster.workers' takes an option of cluster beside it"),
        ({"cluster": "threads"}, "cluster='threads' is no option; there are processes, ray"),
        ({"cluster": 3}, "cluster=3 is no option; write cluster=processes or cluster=ray"),
    ],
    ids=str,
)
def test_workers_that_are_not_chosen_are_told_how_to(given, said):
    with pytest.raises(ConfigError) as raised:
        settings_from("quickstart", given, str)
    assert said in str(raised.value)


def test_python_knows_every_group_that_has_options():
    assert set(options()) == set(WITH_OPTIONS)
