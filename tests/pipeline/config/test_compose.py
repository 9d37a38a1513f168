"""Composed settings: every way to be wrong is exit code 2 with a message that helps, before anything is loaded."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
import yaml

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.pipeline.command_line import NODES, OPS, here, refused, write_job
from tests.sets import often, often_cases

pytestmark = pytest.mark.slow("Hydra composes for each test")

__all__ = ["here"]  # the fixture: a directory with a job file of squares


WRONG = [
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
    ("prompt=Hello", "unknown key 'prompt'; it is one of a step (steps:"),
    ("data.schema.id=string", "data.schema has no 'id' yet; to add it write +data.schema.id=..."),
    ("sampling.name=foo", "unknown key 'sampling.name'; the keys of sampling are temperature"),
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
    ("decode.block_length=4", "'decode.block_length' is a key of another option of decode; choose that one (decode="),
    ("data.nothing_known=1", "; the keys of data are "),
    ("nodes.square.op.ad=1", "unknown key 'nodes.square.op.ad' in the graph; to add it write +nodes"),
    ("nodes.sqare.inputs=numbers", "unknown key 'nodes.sqare': there is no such node"),
    ("+nodes.more={inputs: square}", "unknown key 'nodes.more': there is no such node"),
    ("nodes.square.imputs=numbers", "did you mean inputs?; the keys of a node are op, inputs, capacity_rows"),
    ("chunk_rows=many", "chunk_rows=many cannot work: it takes a whole number"),
    ("chunk_rows=0", "chunk_rows=0 cannot work: it is 1 or more"),
    ("nodes=${progress}", "a value has a type or a size that cannot work"),
    ("dry_run=maybe", "dry_run='maybe' cannot work: it is true (estimate, with the model)"),
    ("progress=loud", "it is one of auto, log, json, none"),
    ("max_error_rate=2", "it is a share"),
    ("name=a/b", "it becomes the name of a directory"),
    ("nodes.square.on_error=explode", "on_error='explode' cannot work"),
    (
        "sampling=gredy",
        "sampling is one of creative, default, greedy, model, no_repeats, plain; did you mean sampling=greedy",
    ),
    ("data.path=${nowhere}", "data.path: Interpolation key 'nowhere' not found"),
    ("target.accepted=5", "did you mean target.accepted_rows?"),
    ("target.accepted_rows=0", "target.accepted_rows=0 cannot work: it is 1 or more, or null"),
    ("seed=[", "'seed=[' cannot be read as key=value"),
    ("seed=???", "seed has no value"),
    ("sampling.top_k=???", "sampling.top_k has no value; write sampling.top_k=..."),
    ("nodes.square.op.add=???", "square.op.add has no value"),
    ("now=yesterday", "now='yesterday' cannot work"),
    ("on_finish.timeout_s=0", "on_finish.timeout_s=0.0 cannot work"),
    ('on_finish.command=[""]', "its first element is a program"),
    ("output.card=mit", "output.card='mit' cannot work: it is true, false, or has the keys license and text"),
    ("prometheus_file=run.txt", "end in .prom"),
    ("on_finish.timeout=3", "did you mean on_finish.timeout_s?"),
    ("+nodes.square.op.factor=2", "node 'square': "),
    ("nodes.square.inputs=nubers", "node 'square': unknown input 'nubers'"),
    (f"nodes.square.op._target_={OPS}.Sqare", "has no 'Sqare'; did you mean 'Square'?"),
    ("nodes.square.op._target_=nowhere.Square", "there is no module 'nowhere'"),
    ("nodes.square.op._target_=Square", "names no module"),
    (f"nodes.square.op._target_={OPS}.OPS", "has no 'OPS'"),
    ("nodes.square.op._target_=builtins.dict", "is no operator"),
]
OFTEN = (
    *(
        "dry_run=maybe",
        "decode.block_length=4",
        "sampling.temprature=1",
        "+nodes.square.imputs=numbers",
        "data.schema.id=string",
        "sampling.top_p=2",
    ),
    *("sampling.structured.choices=[true]", "nodes.square.op._target_=Filter", "nodes.sqare.inputs=numbers"),
    *("chunk_rows=many", "sampling=gredy", "data.path=${nowhere}", "seed=[", "seed=???"),
    *("on_finish.timeout_s=0", 'on_finish.command=[""]', "output.card=mit", "prometheus_file=run.txt"),
)
"""One of each place that finds it: Hydra, OmegaConf, the keys, the values, the graph and the operators."""


@pytest.mark.parametrize(("argument", "says"), often_cases(WRONG, *OFTEN))
def test_a_wrong_argument(capsys, argument, says):
    arguments = ["job=squares.yaml", argument]
    if argument == "seed=???":
        arguments.append("+nodes.numbers.op.content=${seed}")
    assert says in refused(capsys, *arguments)
    assert not Path("outputs").exists()


def test_a_key_of_the_card_stands_alone(capsys):
    says = refused(capsys, "job=squares.yaml", "output.card=true", "output.card.license=mit")
    assert "'output.card.license' cannot be given beside output.card=...; leave that one out" in says


def test_a_target_of_null_switches_off_what_the_job_file_says_of_it(capsys):
    write_job("aimed", "target: {accepted_rows: 20, max_rounds: 3, max_rows: 90}\n" + NODES)
    assert main(["job=aimed.yaml", "target.accepted_rows=null"]) == ExitCode.DONE
    assert yaml.safe_load(Path("outputs/aimed/config.yaml").read_text())["target"]["max_rounds"] == 100
    write_job("aimless", "target: {max_rounds: 3}\n" + NODES)
    assert "it needs target.accepted_rows=N" in refused(capsys, "job=aimless.yaml")


@pytest.mark.parametrize("key", often(["steps", "nodes", "sampling", "data", "target"], "steps", "sampling"))
def test_a_list_where_names_are_wanted_is_told_with_file_and_key(capsys, key):
    write_job("listed", f"{key}:\n  - {{prompt: Hello}}\n")
    assert f"listed.yaml: {key} is a list; it is a mapping, {key}: {{" in refused(capsys, "job=listed.yaml")


def test_a_column_of_any_name_is_renamed_on_the_command_line(capsys):
    Path("q.csv").write_text("What do you think?,Wörter: [a]\nfine,x\n")
    rename = "data.rename={'What do you think?': prompt, \"Wörter: [a]\": it's}"
    given = ["job=generate", "model=fake", "data.path=q.csv", rename, "dry_run=plan"]
    assert main(given) == ExitCode.DONE
    assert "prompt: string, it's: string" in capsys.readouterr().out


def test_a_key_of_the_users_own_may_be_a_number():
    schema = "{type: object, properties: {1: {type: integer}, age: {enum: [{2: 3}]}}}"
    write_job("numbered", f"sampling: {{structured: {{json_schema: {schema}}}}}\n" + NODES)
    assert main(["job=numbered.yaml", "dry_run=plan"]) == ExitCode.DONE


def test_cfg_job_prints_the_composed_config(capsys):
    main(["job=squares.yaml", "--cfg", "job", "seed=5"])
    composed = yaml.safe_load(capsys.readouterr().out)
    assert (composed["seed"], composed["name"], composed["chunk_rows"]) == (5, "squares", 10)


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
