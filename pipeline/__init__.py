"""The dataflow engine: graph, edges, chunks, executor, run state. It imports no operator and no llama.cpp.

From Python: `run`, `sweep`, `start`, `plan`, `estimate`, `load`, `compare` and `Job` (docs/python.md).
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

PACKAGES = Path(__file__).resolve().parents[1]
"""The folder that holds pipeline/, operators/ and tools/: the checkout, or site-packages."""

PROJECT = PACKAGES / "pipeline/_project" if (PACKAGES / "pipeline/_project").is_dir() else PACKAGES
"""The folder that holds conf/, jobs/ and models/: the checkout, or what the wheel has of it."""

OURS = ("pipeline", "operators", "tools", "models")
"""The packages of this project; all others are user code or installed."""

__all__ = [
    "Comparison",
    "Estimate",
    "Job",
    "Plan",
    "Progress",
    "Result",
    "Started",
    "Sweep",
    "compare",
    "estimate",
    "load",
    "plan",
    "run",
    "start",
    "sweep",
]


def public_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that imports a public name when it is first used, so that
    importing the package costs nothing. `modules`: the names, each group separated by blanks, by module."""
    home = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(home[name]), name)

    return get, lambda: sorted({*vars(import_module(package)), *home})


if TYPE_CHECKING:
    from pipeline.python.compare import Comparison, compare
    from pipeline.python.job import Job
    from pipeline.python.result import Result, load
    from pipeline.python.run import Estimate, Plan, estimate, plan, run
    from pipeline.python.start import Started, start
    from pipeline.python.sweep import Sweep, sweep
    from pipeline.runs.control import Progress
else:  # a type checker would take any name for one of these
    __getattr__, __dir__ = public_names(
        __name__,
        {
            "pipeline.python.run": "run plan estimate Plan Estimate",
            "pipeline.python.result": "load Result",
            "pipeline.python.job": "Job",
            "pipeline.python.sweep": "sweep Sweep",
            "pipeline.python.start": "start Started",
            "pipeline.python.compare": "compare Comparison",
            "pipeline.runs.control": "Progress",
        },
    )
