"""The dataflow engine: graph, edges, chunks, executor, run state. It imports no operator and no llama.cpp.

From Python: `run`, `plan`, `estimate`, `load` and `Job` (docs/python.md).
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

CODE = Path(__file__).resolve().parents[1]
"""The folder that holds pipeline/, operators/ and tools/."""
PROJECT = CODE / "pipeline/_project" if (CODE / "pipeline/_project").is_dir() else CODE
"""The folder that holds conf/, jobs/ and models/: the checkout, or a part of an installed wheel."""

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
__all__ = ["CODE", "OURS", "PROJECT", "Estimate", "Job", "Plan", "Result", "estimate", "load", "plan", "run"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: importing `pipeline` costs nothing."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'pipeline' has no attribute '{name}'")
    return getattr(import_module(_PUBLIC[name]), name)
