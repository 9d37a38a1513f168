"""examples: each program runs in an empty folder and prints what it should; the notebook shows what is kept, with the
bytes of every other way, and one of its runs is stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest

from pipeline import PROJECT, run
from pipeline.cli.main import main
from tests.pipeline.command_line import ended
from tests.test_docs import HERE
from tools.notebook import MOST_CHARACTERS, NOTEBOOK, executed

pytestmark = [pytest.mark.laws, pytest.mark.slow("starts a Python a program, and a notebook's kernel")]

PRINTS = {
    "with_pandas": """\
 id          words       completion
  1 hare goose fox fox, goose, hare
  2  oats tea rice  oats, rice, tea
""",
    "with_polars": """\
shape: (2, 3)
┌─────┬────────────────┬──────────────────┐
│ id  ┆ words          ┆ completion       │
│ --- ┆ ---            ┆ ---              │
│ i64 ┆ str            ┆ str              │
╞═════╪════════════════╪══════════════════╡
│ 1   ┆ hare goose fox ┆ fox, goose, hare │
│ 2   ┆ oats tea rice  ┆ oats, rice, tea  │
└─────┴────────────────┴──────────────────┘
""",
    "with_datasets": """\
{'id': 1, 'words': 'hare goose fox', 'completion': 'fox, goose, hare'}
{'id': 2, 'words': 'oats tea rice', 'completion': 'oats, rice, tea'}
""",
}

WITHOUT_REPORT = """
import runpy, sys
from tests.reports import write_none
write_none()
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_every_example_is_here():
    assert {path.stem for path in (PROJECT / "examples").glob("*.py")} == set(PRINTS)


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_prints_its_rows(name, tmp_path):
    ran = ended(tmp_path, sys.executable, "-c", WITHOUT_REPORT, str(PROJECT / f"examples/{name}.py"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == PRINTS[name]
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]


LONG = {"data.limit": 64, "sampling.max_tokens": 32, "chunk_rows": 4, "runtime.threads": 1, "report": False}


def parts(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((directory / "data").iterdir())}


def improper(notebook: nbformat.NotebookNode) -> list[str]:
    """The outputs that warn, name a folder of this machine or are long."""
    texts = [str(out.get("data") or out.get("text")) for cell in notebook.cells for out in cell.get("outputs", ())]
    assert len(texts) >= 9
    return [text for text in texts if HERE.search(text) or len(text) > 2 * MOST_CHARACTERS or "Warning" in text]


def shown(notebook: nbformat.NotebookNode) -> list[str]:
    """The values of its cells but for that of the run that was stopped, which has the rows of that time."""
    results = {cell.id: out for cell in notebook.cells for out in cell.get("outputs", ()) if "data" in out}
    return [out.data["text/plain"] for name, out in results.items() if name != "stop"]


def test_it_shows_what_is_kept_and_has_the_bytes_of_every_other_way(tmp_path):
    made, kept = executed(tmp_path), nbformat.read(NOTEBOOK, as_version=4)
    assert [cell.source for cell in made.cells] == [cell.source for cell in kept.cells]
    assert shown(made) == shown(kept)
    assert improper(made) == improper(kept) == []
    few = {"data.limit": 24, "sampling.max_tokens": 32}
    typed = [f"{key}={value}" for key, value in few.items()]
    assert main(["job=quickstart", *typed, f"output_dir={tmp_path / 'typed'}", "progress=none"]) == 0
    called = run("quickstart", few, directory=tmp_path / "called", progress="none")
    assert parts(tmp_path / "outputs/quickstart") == parts(tmp_path / "typed") == parts(called.directory)
    whole = run("quickstart", LONG, directory=tmp_path / "whole", progress="none")
    assert parts(tmp_path / "outputs/long") == parts(whole.directory)
