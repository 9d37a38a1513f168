"""What a program that imports `pipeline` gets from the types that come with it."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

import pipeline
from pipeline import PROJECT

PROGRAM = """
from pipeline import Estimate, Job, Plan, Result, estimate, load, plan, run

def answers(path: str) -> list[str]:
    job = Job("mine", model="tiny").step("answer", prompt="{{ question }}")
    made: Result = run(job, {"seed": 3}, rows=[{"question": "What is 2 + 3?"}], directory=path, progress="none")
    found: Plan = plan(job, directory=path)
    said: Estimate = estimate("quickstart", {"data.limit": 2}, directory=path)
    assert said.memory is not None
    print(found.graph, said.memory.likely + 1.0, made.counts["data_rows"] + 1)
    return load(path).rows().collect()["answer"].to_list()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """The Python of an environment that has the project and its dependencies installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    ours = [str(PROJECT), *(path for path in sys.path if path.endswith("site-packages"))]
    (site / "all.pth").write_text("\n".join(ours) + "\n", encoding="utf-8")
    return folder / "bin/python"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (PROGRAM, "Success"),
        (PROGRAM.replace("directory=path, progress", "directory=7, progress"), 'Argument "directory" to "run"'),
        (PROGRAM.replace("found.graph", "found.grahp"), '"Plan" has no attribute "grahp"'),
    ],
)
def test_a_program_of_a_user_is_checked_strictly(environment, tmp_path_factory, tmp_path, program, said):
    (tmp_path / "mine.py").write_text(program, encoding="utf-8")
    cache = tmp_path_factory.getbasetemp() / "mypy"
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(environment)]
    ran = subprocess.run(
        [*command, "--cache-dir", str(cache), "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert said in ran.stdout, ran.stdout + ran.stderr
    assert ran.stdout.count("error:") == (said != "Success")


def test_completion_names_what_is_public():
    assert set(pipeline.__all__) == set(pipeline._PUBLIC) <= set(dir(pipeline))
