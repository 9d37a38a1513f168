"""The import rules of docs/architecture.md, over the syntax trees of all modules."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(p for folder in ("pipeline", "operators", "tools") for p in (ROOT / folder).rglob("*.py"))
MOST_FILES = 20
"""Python files in one folder, `__init__.py` aside. operators/ has one for each operator, see test_operators.py."""

ORDER = [
    # The dataflow engine. Each folder imports only those above it.
    "pipeline",
    "pipeline.api",
    "pipeline.system",
    "pipeline.settings",
    "pipeline.run_dir",
    "pipeline.dataflow",
    "pipeline.config",
    "pipeline.cluster",
    "pipeline.monitor",
    "pipeline.publish",
    "pipeline.results",
    "pipeline.labels",
    "pipeline.runs",
    "pipeline.dry_run",
    "pipeline.python",
    "pipeline.cli",
    "pipeline.__main__",
    # The work.
    "operators",
    "operators.settings.checks",
    "operators.rows",
    "operators.images",
    "operators.formats",
    "operators.settings",
    "operators.prompts",
    "operators.engine",
    "operators.engine.backend",
    "operators.engine.images",
    "operators.engine.sampling",
    "operators.engine.sequence",
    "operators.engine.scheduler",
    "operators.engine.strategies",
    "operators.engine.loop",
    "operators.constraints",
    "operators.llama",
    "operators.tuning",
    "operators.generation",
    "operators.estimate",
    "operators.scoring",
    "operators.endpoint.api",
    "operators.endpoint.connection",
    "operators.endpoint",
    "operators.sources",
    "operators.sinks",
    "operators.openai",
    "operators.steps",
    "operators.*",
    # Nothing that a run imports.
    "tools",
]
OPERATORS_MAY_USE = ("pipeline", "pipeline.api", "pipeline.system")
MAY_USE_HYDRA = ("pipeline/config/", "pipeline/cli/")
PUBLIC_NAMES = "pipeline/__init__.py"
"""It names for type checkers what it imports when it is first used."""
STARTS_THREADS = {
    "operators/llama/limits.py",
    "pipeline/cluster/dispatcher.py",
    "pipeline/cluster/members.py",
    "pipeline/cluster/segment_runner.py",
    "pipeline/cluster/pool.py",
    "pipeline/cluster/process_pool.py",
    "pipeline/cluster/ray_pool.py",
    "pipeline/cluster/rpc.py",
    "pipeline/dataflow/executor.py",
    "pipeline/dataflow/stopper.py",
    "pipeline/publish/uploader.py",
    "pipeline/python/start.py",
    "pipeline/runs/on_finish.py",
    "pipeline/runs/watchdog.py",
    "pipeline/system/deadlines.py",
    "pipeline/system/signals.py",
    "operators/endpoint/connection/client.py",
    "operators/engine/backend/loading.py",
    "operators/engine/loop/thread.py",
    "operators/generation/journal.py",
    "operators/images/web.py",
    "operators/scoring/whole_texts.py",
    "tools/bench/alternatives.py",
}
"""Locks are for everybody; a thread of its own, or a pool of them, is not. Clients of llama-server wait in a pool."""
PLAIN_ENGINE = ("operators/engine/sampling/", "operators/engine/scheduler/", "operators/engine/sequence/")
STDLIB_ONLY = ("tools/build/backends.py", "tools/build/build.py", "tools/build/compilers.py", "tools/build/peers.py")
"""They run before anything is installed."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    return name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def imports(path: Path) -> frozenset[str]:
    """Dotted names that a module imports, `from a import b` as a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names}
    return frozenset(found)


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


@cache
def place(module: str) -> int:
    """Position of `module` in ORDER: that of the longest entry which holds it."""
    holds = [entry for entry in ORDER if module == entry or module.startswith(f"{entry}.")]
    best = max(holds, key=len)
    if best == "operators" and module != best:  # an operator that a job can name
        best = "operators.*"
    return ORDER.index(best)


def against_the_order(path: Path) -> set[str]:
    if name_of(path) == PUBLIC_NAMES:
        return set()
    ours = {name for name in imports(path) if name.split(".")[0] in ("pipeline", "operators", "tools")}
    return {name for name in ours if place(name) > place(module_of(path))}


def beyond_the_contracts(path: Path) -> set[str]:
    if path.is_relative_to(ROOT / "pipeline"):
        return packages(path) & {"operators", "tools", "jobs", "llama_cpp", "models"}
    used = {name for name in imports(path) if name.split(".")[0] == "pipeline"}
    return {name for name in used if ORDER[place(name)] not in OPERATORS_MAY_USE}


def not_at_home(package: str, *folders: str) -> Callable[[Path], bool]:
    """A rule: `package` is imported in `folders` only."""
    return lambda path: package in packages(path) and not name_of(path).startswith(folders)


RULES: dict[str, Callable[[Path], object]] = {
    "imports go one way": against_the_order,
    "the engine knows no operator, and operators only the contracts and the system": beyond_the_contracts,
    "imports are absolute": lambda path: {name for name in imports(path) if name.startswith(".")},
    "hydra stays at the door": not_at_home("hydra", *MAY_USE_HYDRA),
    "omegaconf stays at the door": not_at_home("omegaconf", *MAY_USE_HYDRA),
    "llama_cpp stays in its folder": not_at_home("llama_cpp", "operators/llama/", "tools/"),
    "ray stays in its file": not_at_home("ray", "pipeline/cluster/ray_pool.py"),
    "llguidance stays in its folder": not_at_home("llguidance", "operators/constraints/", "tools/"),
    "threads stay where they belong": lambda path: (
        name_of(path) not in STARTS_THREADS
        and (
            re.search(r"\bThread\(", path.read_text(encoding="utf-8"))
            or packages(path) & {"concurrent", "multiprocessing"}
        )
    ),
    "the engine's parts are plain Python and numpy": lambda path: (
        name_of(path).startswith(PLAIN_ENGINE)
        and packages(path) - set(sys.stdlib_module_names) - {"numpy", "operators", "pipeline"}
    ),
    "the build needs nothing installed": lambda path: (
        name_of(path) in STDLIB_ONLY and packages(path) - set(sys.stdlib_module_names) - {"tools"}
    ),
}
"""What to look for in a file; a rule holds if there is nothing of it in any."""


@pytest.mark.parametrize("rule", RULES)
def test_no_file_breaks(rule):
    broken = {name_of(path): found for path in MODULES if (found := RULES[rule](path))}
    assert not broken


@pytest.mark.parametrize("folder", sorted({p.parent for p in MODULES} - {ROOT / "operators"}), ids=name_of)
def test_no_folder_is_a_heap(folder):
    assert len([p for p in folder.glob("*.py") if p.name != "__init__.py"]) <= MOST_FILES


def test_a_name_is_that_of_one_class():
    """Of private ones, too: who searches for a name finds one thing."""
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name_of(path))
    assert not {name: found for name, found in places.items() if len(found) > 1}
