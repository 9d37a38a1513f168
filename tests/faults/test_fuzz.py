"""Whatever job, data, model, template or schema it is given, a run ends with a documented code and says why; so it does
with model files that are well formed and have wrong values."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline import PROJECT
from tests.faults.fuzzing import TEXTS
from tests.pipeline.command_line import ended

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow("runs hundreds of random jobs, and 2,000 models"),
]  # what ends with a code and a reason has tests of its own

FILES = ("parquet", "arrow", "arrows", "jsonl", "csv", "gguf")
LONG_EXAMPLES = {"job": 300}
CHILD = """
import sys
from pathlib import Path
from random import Random
from tests.faults.fuzzing import arguments_of, broken_law, seeds
kind, first, count, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
seed = seeds(folder).get(kind)
for i in range(first, first + count):
    print("SEED", i, flush=True)
    broken = broken_law(arguments_of(kind, Random(i), folder, seed))
    if broken:
        sys.exit(f"BROKEN by {kind} {i}: {broken}")
print("DONE")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where what is damaged lies; also the current directory, since a damaged job may write to a relative path."""
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["job", *FILES, *TEXTS])
def test_it_does_so_many_times_over(kind, folder):
    """In a process of its own: a parser that crashes is a failed test."""
    done = ended(PROJECT, sys.executable, "-c", CHILD, kind, "0", str(LONG_EXAMPLES.get(kind, 100)), str(folder))
    assert done.stdout.endswith("DONE\n"), (
        f"ended with {done.returncode} at {done.stdout[-20:]!r}: {done.stderr[-3000:]}"
    )


MUTANTS, CHUNK = 2000, 125


@pytest.mark.parametrize("first", range(0, MUTANTS, CHUNK))
def test_no_value_ends_the_process(first, matrix, tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_PIPELINE_CACHE", str(tmp_path))
    changes = 1 + first // CHUNK % 2
    command = [sys.executable, "-m", "tests.faults.mutants", str(first), str(CHUNK), str(changes)]
    done = ended(PROJECT, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    matrix.saw(mutants=CHUNK)
