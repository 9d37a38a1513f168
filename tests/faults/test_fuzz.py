"""Whatever job, data, model, template or schema it is given, a run ends with a documented code and says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import PROJECT
from tests.faults.fuzzing import TEXTS, arguments_of, broken_law, seeds

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow("runs hundreds of random jobs"),
]  # what ends with a code and a reason has tests of its own

SHORT = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck), print_blob=False
)
FILES = ("parquet", "arrow", "arrows", "jsonl", "csv", "gguf")
EXAMPLES = {"job": 6}
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


@pytest.mark.parametrize("kind", ["job", *FILES, *TEXTS])
def test_a_run_ends_with_a_code_and_a_reason(kind, folder, monkeypatch):
    monkeypatch.chdir(folder)
    seed = seeds(folder).get(kind)

    @settings(SHORT, max_examples=EXAMPLES.get(kind, 2))
    @given(st.randoms(use_true_random=False))
    def holds(random: Random) -> None:
        broken = broken_law(arguments_of(kind, random, folder, seed))
        assert broken is None, broken

    holds()


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["job", *FILES, *TEXTS])
def test_it_does_so_many_times_over(kind, folder):
    """In a process of its own: a parser that crashes is a failed test."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, kind, "0", str(LONG_EXAMPLES.get(kind, 100)), str(folder)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.stdout.endswith("DONE\n"), (
        f"ended with {done.returncode} at {done.stdout[-20:]!r}: {done.stderr[-3000:]}"
    )
