"""Print how large the code is: what a new engineer has to read.

    python -m tools.figures            # the table
    python -m tools.figures COMMIT ... # how many places of production code each of these changes touches

Lines are all lines of Python and C++ files, as `wc -l` counts them. A name is double if two classes of pipeline/ and
operators/ have it. Files from main() to the first operator are those of pipeline/ when `job=quickstart` is run.
"""

from __future__ import annotations

import ast
import inspect
import io
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("pipeline", "operators", "tools", "tests")
ENDINGS = (".py", ".cpp", ".h")
STEP = (
    "engine/loop/step_loop.py",
    "engine/scheduler/scheduler.py",
    "engine/scheduler/policy.py",
    "engine/scheduler/waiting_queue.py",
    "engine/scheduler/prefix_cache.py",
    "engine/scheduler/step_batch.py",
    "engine/strategies/autoregressive.py",
    "engine/sampling/sampler.py",
)
"""Files of operators/ that schedule, fill, decode and sample."""
JOB = ("job=quickstart", "data.limit=1", "sampling.max_tokens=1", "progress=none", "report=false")


def files(part: str, root: Path = ROOT) -> Iterator[Path]:
    """Yield the files of code of a part, in order."""
    return (path for path in sorted((root / part).rglob("*")) if path.suffix in ENDINGS)


def lines(paths: Iterator[Path]) -> int:
    """Count the lines of files."""
    return sum(path.read_bytes().count(b"\n") for path in paths)


def classes(paths: Iterator[Path]) -> Counter[str]:
    """Count the classes of Python files by name."""
    trees = (ast.parse(path.read_bytes()) for path in paths if path.suffix == ".py")
    return Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def on_the_way() -> tuple[int, int]:
    """Run a job, and count the files of pipeline/ with functions that are called before an operator is run, and those
    of the calls that have not returned by then, of the main thread and of the operator's."""
    called, open_calls = set[str](), set[str]()
    arrived = threading.Event()

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or arrived.is_set() or not code.co_flags & inspect.CO_OPTIMIZED:  # a module's or a class's
            return
        if code.co_filename.startswith(f"{ROOT}/operators/") and code.co_name in ("run", "process"):
            arrived.set()
            for open_call in (frame, sys._current_frames()[threading.main_thread().ident or 0]):
                open_calls.update(called.filename for called in traceback.extract_stack(open_call))
        elif called or code.co_filename.endswith("/pipeline/cli/main.py"):
            called.add(code.co_filename)

    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), suppress(SystemExit):
        sys.argv[1:] = [*JOB, f"output_dir={folder}"]
        threading.setprofile(note)
        sys.setprofile(note)
        runpy.run_module("pipeline", run_name="__main__")
    sys.setprofile(None)
    ours = {str(path) for path in files("pipeline")}
    return len(called & ours), len(open_calls & ours)


def places(commit: str) -> list[str]:
    """Return the files of pipeline/, operators/ and conf/ that a commit changes."""
    changed = subprocess.run(
        ["git", "-C", ROOT, "show", "--format=", "--name-only", commit, "--", "pipeline", "operators", "conf"],
        capture_output=True,
        text=True,
        check=True,
    )
    return changed.stdout.split()


def main() -> None:
    """Print the table, or the places of the commits that are named."""
    for commit in sys.argv[1:]:
        print(commit, *(changed := places(commit)), f"{len(changed)} places", sep="\n  ")
    if sys.argv[1:]:
        return
    counts = {part: lines(files(part)) for part in PARTS}
    named = classes(path for part in PARTS[:2] for path in files(part))
    modules = sum(path.suffix == ".py" for part in PARTS[:2] for path in files(part))
    table = {
        "lines of pipeline/, operators/, tools/": sum(counts[part] for part in PARTS[:3]),
        **{f"lines of {part}/": count for part, count in counts.items()},
        "modules of pipeline/ and operators/": modules,
        "classes": named.total(),
        "double names of classes": sum(count > 1 for count in named.values()),
        "lines that schedule, fill, decode and sample": lines(ROOT / "operators" / path for path in STEP),
    }
    table["main() to the first operator: files"], table["of these with calls that are still open"] = on_the_way()
    for label, number in table.items():
        print(f"{label:48}{number:>8,}")


if __name__ == "__main__":
    main()
