"""What a program that imports `pipeline` gets from the types that come with it."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

import pipeline
import pipeline.api
from pipeline import PROJECT

pytestmark = [
    pytest.mark.laws,
    pytest.mark.slow("runs mypy in an environment of its own"),
]  # runs mypy in an environment of its own

PROGRAM = """
from pipeline import (
    Comparison, Estimate, Job, Plan, Progress, Result, Started, Sweep, compare, estimate, load, plan, run, start, sweep
)

def told(progress: Progress) -> None:
    print(progress.rows + 1, progress.eta)

def answers(path: str) -> list[str]:
    job = Job("mine", model="tiny").step("answer", prompt="{{ question }}")
    made: Result = run(job, {"seed": 3}, rows=[{"question": "What is 2 + 3?"}], directory=path, progress="none")
    found: Plan = plan(job, directory=path)
    said: Estimate = estimate("quickstart", {"data.limit": 2}, directory=path)
    assert said.memory is not None
    print(found.graph, said.memory.likely + 1.0, made.counts["data_rows"] + 1)
    begun: Started = start(job, directory=path, on_progress=told)
    print([batch.num_rows + 1 for batch in begun.batches()], begun.result(timeout=9.0).directory)
    swept: Sweep = sweep(job, {"seed": [1, 2]}, on_progress=told, model="tiny")
    compared: Comparison = compare(*(each for each in swept.results if each is not None))
    print(swept.table().height, compared.paired.height, compared.text)
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


WRONG = {
    "argument": (PROGRAM.replace("directory=path, progress", "directory=7, progress"), 'Argument "directory" to "run"'),
    "callback": (
        PROGRAM.replace("path, on_progress=told", "path, on_progress=7"),
        'Argument "on_progress" to "start"',
    ),
    "attribute": (PROGRAM.replace("found.graph", "found.grahp"), '"Plan" has no attribute "grahp"'),
}


def test_programs_of_a_user_are_checked_strictly(environment, tmp_path):
    (tmp_path / "right.py").write_text(PROGRAM, encoding="utf-8")
    for name, (program, _) in WRONG.items():
        (tmp_path / f"{name}.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(environment)]
    files = sorted(path.name for path in tmp_path.glob("*.py"))
    ran = subprocess.run([*command, *files], cwd=tmp_path, capture_output=True, text=True, check=False)
    said = {line.partition(":")[0]: line for line in ran.stdout.splitlines() if ": error:" in line}
    assert sorted(said) == [f"{name}.py" for name in sorted(WRONG)], ran.stdout + ran.stderr
    assert ran.stdout.count("error:") == len(WRONG)
    for name, (_, words) in WRONG.items():
        assert words in said[f"{name}.py"]


@pytest.mark.parametrize("package", [pipeline, pipeline.api])
def test_completion_names_what_is_public(package):
    assert all(hasattr(package, name) for name in package.__all__)
    not_imported = set(dir(package)) - set(vars(package))
    assert not_imported == set(package.__all__) - set(vars(package)), "the names of the table are the public ones"
    assert set(package.__all__) <= set(dir(package))
