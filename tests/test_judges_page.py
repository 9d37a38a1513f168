"""docs/judges.md goes the whole way with the labels that ship: its commands print what it shows, but for numbers, since
another machine's instructions give other bits."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from docs.judge_labels import FILE, labels
from docs.refresh_readme import BLOCK, JUDGES, PYTHON
from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main

pytestmark = pytest.mark.slow("runs job=judge")

PAGE = JUDGES.read_text(encoding="utf-8")
SHOWN = [(block["command"], block["output"]) for block in BLOCK.finditer(PAGE)]


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    """The folder in which the commands run, after the first of them."""
    folder = tmp_path_factory.mktemp("judges")
    (folder / "jobs").symlink_to(PROJECT / "jobs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(shlex.split(SHOWN[0][0].partition(" | ")[0].removeprefix(f"{PYTHON} -m pipeline"))) == ExitCode.DONE
    return folder


def shape(line: str) -> str:
    """A line without its numbers and the widths of its columns."""
    return re.sub(r"[\d.,]+", "N", " ".join(line.split()))


def test_the_commands_of_the_page_print_what_it_shows(here, monkeypatch, capsys):
    monkeypatch.chdir(here)
    for command, output in SHOWN[1:]:
        if command.startswith(PYTHON):
            assert main(shlex.split(command.removeprefix(f"{PYTHON} -m pipeline"))) == ExitCode.DONE
            printed = [line.rstrip() for line in capsys.readouterr().out.rstrip().splitlines()]
        else:
            printed = (here / "outputs/judge/README.md").read_text(encoding="utf-8").splitlines()[-4:-1]
        assert {shape(line) for line in printed} <= {shape(line) for line in output.splitlines()}, command
        assert len(printed) > len(output.splitlines()) / 2, command


def test_the_labels_that_ship_are_those_of_its_answers(here):
    """But for rows that another machine answers otherwise."""
    made, ships = labels(here / "outputs/judge").splitlines(), FILE.read_text(encoding="utf-8").splitlines()
    assert len(made) == len(ships)
    assert sum(a == b for a, b in zip(made, ships, strict=True)) >= 0.8 * len(ships)


def test_the_line_that_calibrate_prints_can_be_pasted_into_the_job(here, tmp_path, monkeypatch, capsys):
    (line,) = {line for _, output in SHOWN for line in output.splitlines() if line.startswith("keep: ")}
    keep = line.partition(" #")[0]
    assert f"    {keep}\n" in PAGE  # the page shows the job with it
    text = (PROJECT / "jobs/judge.yaml").read_text(encoding="utf-8")
    pasted = re.sub(r"( +)(probability: true.*\n)", rf"\1\2\1{line}\n", text)
    assert yaml.safe_load(pasted)["steps"]["right"]["keep"] == keep.removeprefix("keep: ")
    (tmp_path / "judge.yaml").write_text(pasted, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main([f"job={tmp_path / 'judge.yaml'}", "dry_run=plan", "progress=none"]) == ExitCode.DONE
    assert "right_keep" in capsys.readouterr().out
