"""Print how large the code is: what a new engineer has to read.

    python -m tools.figures

Lines are all lines of Python and C++ files, as `wc -l` counts them. A name is double if two classes of pipeline/ and
operators/ have it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("pipeline", "operators", "tools", "tests")
ENDINGS = (".py", ".cpp", ".h")
STEP = (
    "engine/loop/worker.py",
    "engine/scheduler/scheduler.py",
    "engine/scheduler/policy.py",
    "engine/scheduler/waiting_queue.py",
    "engine/scheduler/prefix_cache.py",
    "engine/scheduler/step_batch.py",
    "engine/strategies/autoregressive.py",
    "engine/sampling/sampler.py",
)
"""Files of operators/ that schedule, fill, decode and sample."""


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


def main() -> None:
    """Print the table."""
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
    for what, number in table.items():
        print(f"{what:48}{number:>8,}")


if __name__ == "__main__":
    main()
