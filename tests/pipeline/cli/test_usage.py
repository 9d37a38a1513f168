"""What people mistype is answered with what to write, and what is then written works."""

from __future__ import annotations

import shlex
import unicodedata
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pipeline.api.errors import ExitCode
from pipeline.cli.commands import COMMANDS
from pipeline.cli.main import main
from pipeline.config.explain import PARSER, for_hydra
from tests.pipeline.command_line import here, refused, write_job
from tests.sets import often, often_cases

__all__ = ["here"]  # the fixture: a directory with a job file of squares

SQUARES = "job=squares.yaml"


TEXTS = ("Hi, you: answer!", "Q: {{ question }}", "(a) or [b]?", "Don't = do", "{x: 1")


@pytest.mark.parametrize("text", often(TEXTS, *TEXTS[:2]))
def test_a_text_that_cannot_be_read_is_shown_with_quotes_with_which_it_can(capsys, text):
    message = refused(capsys, SQUARES, f"model.system={text}")
    (suggested,) = shlex.split(message.split("quotes of its own: ")[1])
    assert main([SQUARES, suggested, "--cfg", "job", "--package", "model"]) == ExitCode.DONE
    assert text in capsys.readouterr().out.replace("''", "'")


@pytest.mark.parametrize(
    ("arguments", "says"),
    often_cases(
        [
            (['model.system=say "yes", now'], r"""a \ before quotes inside: 'model.system="..."'"""),
            (["model.system=yes, no"], """for one text write 'model.system="yes, no"', for a list"""),
            (["data.path=my", "file.csv"], "'file.csv' cannot be read as key=value; there are no spaces around the ="),
            (["sampling.stop=[a,", "b]"], "a list is put in quotes as a whole: 'sampling.stop=[one, two]'"),
            (["model.system=Grüße, du"], """for one text write 'model.system="Grüße, du"', for a list"""),
            (
                ["steps.größe.n=2"],
                "a key has only letters of ASCII, digits, _ and dots here; write this one in the job file",
            ),
            (
                ["data.storage_options={key: A, secret: 'b}"],
                """in quotes of their own: 'data.storage_options={name: "..."}'""",
            ),
            (["sampling.stop=x"], "sampling.stop takes a list; write sampling.stop=[...]"),
            (["sampling.temperature=hot"], "sampling.temperature=hot cannot work: it takes a number"),
            (["overwrite=perhaps"], "overwrite=perhaps cannot work: it takes true or false"),
            (["--seed=3"], "--seed: settings have no dashes; write seed=3"),
            (["-seed", "3"], "write seed=VALUE"),
            (["--dry-run"], "write dry_run=VALUE"),
            (["--sampling.max-tokens=5"], "write sampling.max_tokens=5"),
        ],
        ["model.system=yes, no"],
        ["data.path=my", "file.csv"],
        ["steps.größe.n=2"],
        ["overwrite=perhaps"],
        ["-seed", "3"],
    ),
)
def test_an_argument_that_is_no_setting_is_told_how_to_be_one(capsys, arguments, says):
    assert says in refused(capsys, SQUARES, *arguments)
    assert not Path("outputs").exists()


def test_characters_beyond_ascii_need_no_quotes():
    printable = (c for c in map(chr, range(128, 0x20000)) if unicodedata.category(c)[0] in "LMNPS")
    of_each_script = "".join({unicodedata.name(c, "").partition(" ")[0]: c for c in printable}.values())
    assert PARSER.parse_override(for_hydra(f"data.path=a {of_each_script}.csv")).value() == f"a {of_each_script}.csv"
    texts = {"C:\\ä\\b": "C:\\ä\\b", "a\\,ö": "a,ö", "${oc.env:HOME}/ö": "${oc.env:HOME}/ö", " 日 ": "日", "ö\\": "ö\\"}
    for typed, meant in texts.items():
        assert PARSER.parse_override(for_hydra(f"+data.path={typed}")).value() == meant
    each = PARSER.parse_override(for_hydra("data.path=[日本.csv, 'é.csv', \"ü,\", a, 1]")).value()
    assert each == ["日本.csv", "é.csv", "ü,", "a", 1]
    assert PARSER.parse_override(for_hydra("seed=ä,b")).is_sweep_override()


def test_a_mapping_may_have_any_texts_and_null():
    given = PARSER.parse_override(for_hydra("output.storage_options={key: null, secret: b=c, ä: ö}")).value()
    assert OmegaConf.create({"x": given}).x == {"key": None, "secret": "b=c", "ä": "ö"}


@pytest.mark.parametrize(
    ("argument", "noted"),
    often_cases(
        [
            (r'sampling.stop=["\n"]', True),
            (r'nodes.render.op.template="Q: {{ q }}\nA:"', True),
            ('sampling.stop=["\n"]', False),
            (r'sampling.structured.regex="a\n"', False),
            ("nodes.render.op.template=\"{{ q | replace('\\n', ' ') }}\"", False),
            ("job.yaml", True),  # in which `stop: ['\n']` has YAML's single quotes
        ],
        'nodes.render.op.template="Q: {{ q }}\\nA:"',
        "job.yaml",
        "nodes.render.op.template=\"{{ q | replace('\\n', ' ') }}\"",
    ),
)
def test_a_line_break_that_is_none_is_noted(capsys, argument, noted):
    stops = "sampling: {stop: ['\\n', \"\\n\"]}"
    write_job("job", f"defaults:\n  - override /flow: generate\ndata: {{path: p.csv}}\n{stops}\n")
    Path("p.csv").write_text("prompt,q\na,b\n")
    job = ["job=job.yaml"] if argument == "job.yaml" else ["job=generate", "data.path=p.csv", "model=tiny", argument]
    assert main([*job, "dry_run=plan"]) == ExitCode.DONE
    assert (r"\n is a backslash and an n here" in capsys.readouterr().err) == noted


@pytest.mark.parametrize(
    ("text", "says"),
    often_cases(
        [
            ("a: [1", "cannot be read as YAML"),
            ("- 1", "must hold keys and values"),
            ("a: &a [*a]", "bad.yaml: an alias (*name) stands inside of what it names"),
            (
                "\n".join([f"x{i}: &x{i} [{f'*x{i - 1},' * 9 if i else 'a'}]" for i in range(9)]),
                " values, each alias (*name)",
            ),
            ("sampling:\n  temprature: 1\n", "did you mean sampling.temperature? (in "),
            (
                "seed:\n\t3\n",
                "line 2, column 1: found character '\\t' that cannot start any token; YAML is indented with",
            ),
            ("name: {{ x }}\n", "line 1, column 8: found unhashable key; a text that begins with { needs quotes"),
            ("name: a: b\n", "line 1, column 8: mapping values are not allowed here; a text with a colon"),
            ("seed: 1\nseed: 2\n", "line 2, column 1: found duplicate key seed"),
            ("defaults:\n  - model: gguf\n", "write `- override /model: gguf`"),
            ("defaults:\n  - /model: gguf\n", "write `- override /model: gguf`"),
            ("defaults:\n  - override flow: generate\n", "in a job's defaults write `- override /flow: OPTION` (in "),
            ("defaults:\n  - override /flwo: generate\n", "did you mean /flow?"),
            ("sampling:\n  structured: {choices: [yes, no]}\n", 'write "yes", "on" or "true", with the quotes (in '),
            ("sampling:\n  stop: [no]\n", "sampling.stop[0]: False is a boolean here, not a text"),
            ("data:\n  prompt_column: on\n", "data.prompt_column: True is a boolean here, not a text"),
            ("sampling: 1\n", "sampling takes settings of its own below it (sampling: {key: value})"),
            (
                "on_finish: x\n",
                "on_finish takes settings of its own below it (on_finish: {key: value}), not a single value (",
            ),
            ("nodes: {square: 5}\n", "nodes.square takes settings of its own below it"),
            ("output: jsonl\n", "chosen with `- override /output: jsonl` at the end of `defaults:`"),
            ("sampling:\n  stop: x\n", "sampling.stop takes a list; write sampling.stop=[...] (in "),
        ],
        "- 1",
        "a: &a [*a]",
        "sampling:\n  temprature: 1\n",
        "name: a: b\n",
        "defaults:\n  - model: gguf\n",
        "output: jsonl\n",
        "on_finish: x\n",
    ),
)
def test_a_job_file_that_is_wrong_is_told_where_and_what_to_write(capsys, text, says):
    write_job("bad", text)
    message = refused(capsys, "job=bad.yaml")
    assert says in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    often_cases(
        [
            ("", "no job is given; write job=NAME (--help tells more)\njobs:\n"),
            ("job=quikstart", "did you mean job=quickstart?\njobs:\n"),
            ("job=squares", "there is no job 'squares'; did you mean job=squares.yaml"),
            ("job=nothing.yaml", "there is no job file nothing.yaml"),
            ("job=squares.yaml job=quickstart", "'job=squares.yaml' and 'job=quickstart': one job is run"),
            ("job=mine --config-dir nowhere", "--config-dir nowhere: there is no such directory"),
            ("docter", "did you mean doctor?"),
            ("quickstart", "unknown command 'quickstart'; a job is run with job=quickstart"),
            ("squares.yaml", "unknown command 'squares.yaml'; a job is run with job=squares.yaml"),
            ("run squares.yaml", "unknown command 'run'; a job is run with job=squares.yaml"),
        ],
        "job=quikstart",
        "job=nothing.yaml",
        "docter",
        "quickstart",
    ),
)
def test_a_job_or_a_command_that_is_not_there_is_told_with_one_that_is(capsys, arguments, says):
    assert says in refused(capsys, *arguments.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_asked_for_help_gives_it(capsys, command):
    assert main([command, "--help"]) == ExitCode.DONE
    assert f"usage: python -m pipeline {command} " in capsys.readouterr().out


def test_the_help_lists_every_command(capsys):
    assert main(["--help"]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert all(f"\n  {name} {command.usage} " in shown for name, command in COMMANDS.items())


def test_the_name_of_a_job_in_place_of_its_directory_is_told_the_directory(capsys):
    assert main([SQUARES]) == ExitCode.DONE
    for arguments in (["status", "squares"], ["report", "squares"], ["verify", "squares"]):
        assert "did you mean outputs/squares?" in refused(capsys, *arguments)
        assert "did you mean" not in refused(capsys, arguments[0], "circles")


def test_a_command_without_its_run_is_told_what_to_write(capsys):
    message = refused(capsys, "status")
    assert "usage: python -m pipeline status outputs/NAME [--nodes] [--json]" in message
    assert "required: outputs/NAME" in message
