"""The dataflow engine: graph, edges, chunks, executor, run state. It imports no operator and no llama.cpp.

From Python: `run`, `plan`, `estimate`, `load` and `Job` (docs/python.md).
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

PACKAGES = Path(__file__).resolve().parents[1]
"""The folder that holds pipeline/, operators/ and tools/: the checkout, or site-packages."""

PROJECT = PACKAGES / "pipeline/_project" if (PACKAGES / "pipeline/_project").is_dir() else PACKAGES
"""The folder that holds conf/, jobs/ and models/: the checkout, or what the wheel has of it."""

OURS = ("pipeline", "operators", "tools", "models")
"""The packages of this project; all others are user code or installed."""

if TYPE_CHECKING:
    from pipeline.python.job import Job
    from pipeline.python.result import Result, load
    from pipeline.python.run import Estimate, Plan, estimate, plan, run

_PUBLIC = {
    **dict.fromkeys(("run", "plan", "estimate", "Plan", "Estimate"), "pipeline.python.run"),
    **dict.fromkeys(("load", "Result"), "pipeline.python.result"),
    "Job": "pipeline.python.job",
}
__all__ = ["Estimate", "Job", "Plan", "Result", "estimate", "load", "plan", "run"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: importing `pipeline` costs nothing."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'pipeline' has no attribute '{name}'")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    """Return the names for completion, those that are not imported yet too."""
    return sorted({*globals(), *__all__})
